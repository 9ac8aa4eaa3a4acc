#include "llm/plan/run_plan.h"

#include <algorithm>
#include <filesystem>
#include <vector>

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "llm/config/words.h"
#include "llm/inputs/data_options.h"
#include "llm/plan/free_space.h"
#include "llm/plan/memory_table.h"
#include "llm/plan/tiny_step.h"
#include "llm/setup/auto_dtype.h"
#include "llm/setup/device.h"
#include "llm/setup/objective.h"
#include "llm/setup/options_of_config.h"
#include "llm/setup/peak_memory.h"
#include "llm/track/step_record.h"
#include "ops/cpu/isa.h"
#include "sherd/error.h"

namespace llm::plan {

namespace {

// The configuration with what "auto" becomes on a device.
config::RunConfig on_device(config::RunConfig config, const Device& device) {
  config::ParamDtype& dtype = config.precision.param_dtype;
  if (device.type == c10::DeviceType::CPU) {
    dtype = setup::chosen_dtype(dtype);
  } else if (dtype == config::ParamDtype::Auto) {
    dtype = device.auto_dtype == c10::kHalf ? config::ParamDtype::Float16
                                            : config::ParamDtype::BFloat16;
  }
  return config;
}

std::int64_t available_to_a_rank(const PlannedHosts& hosts) {
  if (hosts.device.type != c10::DeviceType::CPU) {
    return hosts.memory_bytes.value_or(hosts.device.memory_bytes);
  }
  return hosts.memory_bytes.value_or(setup::available_memory_bytes(hosts.ranks)) / hosts.ranks;
}

std::int64_t chunk_tokens_of(const config::RunConfig& config, const setup::ModelShape& shape,
                             const PlannedHosts& hosts) {
  const std::int64_t gpu_memory_bytes =
      hosts.device.type == c10::DeviceType::CPU
          ? 0
          : hosts.memory_bytes.value_or(hosts.device.memory_bytes);
  const auto element =
      static_cast<std::int64_t>(c10::elementSize(setup::dtype_of(config.precision.param_dtype)));
  return setup::loss_chunk_tokens({config.memory.loss_chunk_tokens, config.memory.loss_chunk_bytes},
                                  element * shape.config.shape.vocab_size, gpu_memory_bytes);
}

PlannedRun planned_step(const config::RunConfig& config, const setup::ModelShape& shape,
                        const PlannedHosts& hosts, const MicroBatch& batch) {
  const int ranks = hosts.hosts * hosts.ranks;
  const inputs::BatchShape batches = inputs::batch_shape(config.train, ranks);
  const auto micro_batches = static_cast<size_t>(batches.micro_batches(batches.global_batch));
  const bool on_cpu = hosts.device.type == c10::DeviceType::CPU;
  return {
      .model = shape.config,
      .prepare = setup::preparation_of(config),
      .ranks = {.size = ranks,
                .local_size = hosts.ranks,
                .device = hosts.device.type,
                .transport = setup::transport_of(setup::shard_options(config).offload),
                .reduce_scatter = setup::reduce_scatter_of(config.parallel.reduce_scatter)},
      .sharding = setup::shard_options(config),
      .shard_size = config.parallel.shard_size,
      .adamw = setup::adamw_mode(config.precision),
      .loss_chunk_tokens = chunk_tokens_of(config, shape, hosts),
      .attention = attention_on(hosts.device, setup::attention_of(config.device.attention),
                                shape.config.shape, setup::dtype_of(config.precision.param_dtype),
                                batch, config.train.deterministic),
      .micro_batches = std::vector<MicroBatch>(micro_batches, batch),
      .loss = {config.train.objective == config::Objective::Dpo, setup::reference_is_base(config)},
      .pooling = hosts.device.pooling,
      .libraries_bytes = on_cpu ? kHostLibrariesBytes : 0,
      .workspaces_bytes = workspaces_bytes(hosts.device, config.device.cuda_graphs),
      .cuda_graphs = config.device.cuda_graphs};
}

void plan_time(RunPlan& plan, const PlannedRun& run) {
  const PlannedHosts& hosts = plan.hosts;
  const Rates rates = hosts.gpu_rates ? rates_of_gpu(*hosts.gpu_rates)
                                      : rates_of(hosts.device, {hosts.ranks, hosts.threads});
  const Links links =
      links_of(hosts.device, hosts.hosts, hosts.ranks, hosts.link_gb_per_second, rates);
  plan.time = plan_step_time(run, rates, links);
  plan.rates = links.source.empty() ? rates.source : rates.source + "; " + links.source;
  if (plan.memory.host_bytes + plan.memory.page_bytes > 0) {
    plan.rates += fmt::format("; {:.3g} GB/s each way between a GPU and its host{}",
                              links.pinned_bytes_per_second / 1e9,
                              plan.memory.page_bytes > 0 ? " (pages are slower)" : "");
  }
}

const PhasePlan& worst_phase(const RunPlan& plan) {
  return *std::find_if(plan.memory.phases.begin(), plan.memory.phases.end(),
                       [&](const auto& phase) { return phase.name == plan.memory.peak_phase; });
}

// "backward (activations)": where most is in use, and for what.
std::string worst_text(const RunPlan& plan) {
  return fmt::format("{} ({})", plan.memory.peak_phase,
                     name_of(largest_of(worst_phase(plan)), plan.weights));
}

std::string memory_text(const RunPlan& plan) {
  using track::short_bytes;
  const bool on_cpu = plan.hosts.device.type == c10::DeviceType::CPU;
  std::string text = memory_table(plan.memory, plan.weights);
  const std::string activations = largest_activations(worst_phase(plan));
  if (!activations.empty()) {
    text += fmt::format("\nactivations in {}: {}", plan.memory.peak_phase, activations);
  }
  text += fmt::format("\nprogram itself: {}{}", short_bytes(plan.constant_bytes),
                      on_cpu ? "" : ", with the driver and its libraries (assumed)");
  if (plan.memory.offloaded_bytes > 0) {
    text += fmt::format("\non the disk: {} per rank (memory.offload){}",
                        short_bytes(plan.memory.offloaded_bytes),
                        plan.disk_available_bytes
                            ? fmt::format("; {} are free", short_bytes(*plan.disk_available_bytes))
                            : "");
  }
  if (plan.memory.host_bytes > 0) {
    const int ranks = plan.hosts.ranks;
    text += fmt::format(
        "\npinned on the host: {} per rank{} (memory.offload)", short_bytes(plan.memory.host_bytes),
        ranks > 1
            ? fmt::format(", {} for {} ranks", short_bytes(ranks * plan.memory.host_bytes), ranks)
            : "");
  }
  if (plan.memory.page_bytes > 0) {
    text +=
        fmt::format("\npages of the host: at most {} per rank, for transfers to and from the disk",
                    short_bytes(plan.memory.page_bytes));
  }
  if (plan.reserve_bytes > 0) {
    text += fmt::format("\nreserve: {}, for {} (assumed)", short_bytes(plan.reserve_bytes),
                        plan.hosts.hosts * plan.hosts.ranks > 1
                            ? "NCCL's buffers and unused parts of blocks"
                            : "unused parts of blocks");
  }
  return text + "\n";
}

std::string verdict_text(const RunPlan& plan) {
  using track::short_bytes;
  const std::string needed = short_bytes(plan.needed_bytes());
  if (!plan.has_room_on_disk()) {
    return fmt::format(
        "does not fit: {} on a disk with {} free\n",
        plan.hosts.ranks == 1
            ? fmt::format("one rank stores {}", short_bytes(plan.memory.offloaded_bytes))
            : fmt::format("{} ranks store {} each", plan.hosts.ranks,
                          short_bytes(plan.memory.offloaded_bytes)),
        short_bytes(*plan.disk_available_bytes));
  }
  if (plan.available_bytes == 0) {
    return fmt::format("needs {} per rank; the available memory is unknown\n", needed);
  }
  return fmt::format(
      "{}: {}{} of {} per rank, peak in {}\n", plan.fits() ? "fits" : "does not fit", needed,
      plan.reserve_bytes > 0 ? fmt::format(" and a reserve of {},", short_bytes(plan.reserve_bytes))
                             : "",
      short_bytes(plan.available_bytes), worst_text(plan));
}

// One line per source.
std::string rates_lines(std::string rates) {
  const std::string between = "; ";
  for (std::size_t at = rates.find(between); at != std::string::npos;
       at = rates.find(between, at)) {
    rates.replace(at, between.size(), ";\n  ");
  }
  return rates;
}

std::string time_text(const RunPlan& plan) {
  const StepTime& time = plan.time;
  std::string text =
      fmt::format("a step takes {} s{}, {} tokens/s\n  {}", track::short_number(time.step_seconds),
                  time.exposed_communication_seconds > 0
                      ? fmt::format(", {} of it waiting for links",
                                    track::short_number(time.exposed_communication_seconds))
                      : "",
                  track::short_count(plan.tokens_per_second), rates_lines(plan.rates));
  if (plan.memory.offloaded_bytes > 0) {
    text += fmt::format("\n  without the disk, which moves {} per rank and step",
                        track::short_bytes(static_cast<std::int64_t>(plan.time.disk_bytes)));
  }
  if (plan.hosts.hosts > 1) {
    text +=
        "\n  (which strategy is the fastest depends on that link: `sherd bandwidth` measures it)";
  }
  return text;
}

std::string ranks_text(const PlannedHosts& hosts) {
  const int ranks = hosts.hosts * hosts.ranks;
  return fmt::format("{} rank{} on {} host{}", ranks, ranks == 1 ? "" : "s", hosts.hosts,
                     hosts.hosts == 1 ? "" : "s");
}

void check_offload(const config::OffloadSection& offload, const Device& device) {
  const bool on_cpu = device.type == c10::DeviceType::CPU;
  if (on_cpu && offload.any_on_host()) {
    throw sherd::Error(
        sherd::ExitCode::Usage,
        fmt::format("memory.offload.{} = \"host\" is for GPUs, and on a CPU all memory is the "
                    "host's: {}.",
                    offload.optimizer_on_host    ? "optimizer"
                    : offload.gradients_on_host  ? "gradients"
                    : offload.parameters_on_host ? "parameters"
                                                 : "activations",
                    offload.any_state_on_host()
                        ? "leave it \"none\", or choose \"disk:FOLDER\""
                        : "leave it \"none\", or set memory.activation_checkpointing"));
  }
}

}  // namespace

PlannedHosts hosts_of(const sherd::World& world) {
  const int local = world.size() % world.local_size() == 0 ? world.local_size() : 1;
  const sherd::Gpu* const gpu = setup::gpu_of(world);
  PlannedHosts hosts{gpu != nullptr ? device_of_gpu(*gpu) : device_of_name("cpu"),
                     world.size() / local, local};
  hosts.threads = at::get_num_threads();
  return hosts;
}

PathOfPlan::PathOfPlan(c10::DeviceType device) {
  if (device != c10::DeviceType::CPU) {
    assumed_.emplace(sherd::ops::cpu::Isa::Avx512Bf16);
    as_on_gpus_.emplace();
  }
}

RunPlan plan_run(const config::RunConfig& given, const setup::ModelShape& shape,
                 const PlannedHosts& hosts, const PlannedBatches& batches) {
  const config::RunConfig config = on_device(given, hosts.device);
  const bool on_cpu = hosts.device.type == c10::DeviceType::CPU;
  check_offload(config.memory.offload, hosts.device);
  const PathOfPlan path(hosts.device.type);
  PlannedRun run = planned_step(config, shape, hosts, batches.training);
  run.evaluation = batches.evaluation;
  const setup::ResidentMemory program =
      on_cpu ? program_memory(shape.config, setup::shard_options(config), hosts.ranks)
             : setup::ResidentMemory{.own_bytes = hosts.device.context_bytes};
  RunPlan made{
      .model = config.model.path,
      .hosts = hosts,
      .strategy = config::word_of(config.parallel.strategy, config::strategy_words()),
      .weights = {config::word_of(config.precision.param_dtype, config::param_dtype_words()),
                  config.precision.master == config::MasterFormat::Split &&
                      config.precision.param_dtype == config::ParamDtype::BFloat16},
      .batch = batches.source,
      .parameters = shape.parameters,
      .trained = shape.trained,
      .memory = plan_memory(run),
      .constant_bytes = program.bytes(),
      .constant_file_bytes = program.file_bytes,
      .available_bytes = available_to_a_rank(hosts),
      .checkpoint_bytes = checkpoint_bytes(shape.trained, config.precision)};
  if (on_cpu) {
    made.disk_available_bytes = offload_disk_bytes(config.memory.offload);
  }
  made.reserve_bytes = reserve_bytes(hosts.device, run.ranks.size, made.memory.peak_bytes);
  plan_time(made, planned_step(config, shape, hosts, batches.typical));
  made.tokens_per_second = batches.tokens_a_step / made.time.step_seconds;
  return made;
}

nlohmann::ordered_json json_of(const RunPlan& plan) {
  return {{"fits", plan.fits()},
          {"device", plan.hosts.device.name},
          {"ranks", plan.hosts.hosts * plan.hosts.ranks},
          {"hosts", plan.hosts.hosts},
          {"model", plan.model},
          {"parameters", plan.parameters},
          {"trained_parameters", plan.trained},
          {"strategy", plan.strategy},
          {"param_dtype", plan.weights.dtype},
          {"batch", plan.batch},
          {"constant_bytes", plan.constant_bytes},
          {"reserve_bytes", plan.reserve_bytes},
          {"available_bytes", plan.available_bytes},
          {"peak_bytes", plan.memory.peak_bytes},
          {"peak_phase", plan.memory.peak_phase},
          {"peak_item", plan.memory.peak_item},
          {"phases", phases_json(plan.memory)},
          {"offloaded_bytes", plan.memory.offloaded_bytes},
          {"host_bytes", plan.memory.host_bytes},
          {"page_bytes", plan.memory.page_bytes},
          {"disk_bytes_a_step", static_cast<std::int64_t>(plan.time.disk_bytes)},
          {"disk_available_bytes", plan.disk_available_bytes.value_or(0)},
          {"checkpoint_bytes", plan.checkpoint_bytes},
          {"step_seconds", plan.time.step_seconds},
          {"exposed_communication_seconds", plan.time.exposed_communication_seconds},
          {"tokens_per_second", plan.tokens_per_second},
          {"rates", plan.rates}};
}

std::string to_json(const RunPlan& plan, const std::optional<MeasuredMemory>& measured) {
  nlohmann::ordered_json line = json_of(plan);
  if (measured) {
    const auto& ranks = measured->rank_peak_bytes;
    line["measured"] = {{"peak_bytes", *std::max_element(ranks.begin(), ranks.end())},
                        {"rank_peak_bytes", ranks}};
  }
  return line.dump();
}

std::string to_text(const RunPlan& plan) {
  std::string text = fmt::format(
      "plan: {}, {} parameters{}, {}, {} in {}, device {}\nbatch: {}\n", plan.model,
      track::short_count(static_cast<double>(plan.parameters)),
      plan.trained == plan.parameters
          ? ""
          : fmt::format(" ({} trained)", track::short_count(static_cast<double>(plan.trained))),
      ranks_text(plan.hosts), plan.strategy, plan.weights.dtype, plan.hosts.device.name,
      plan.batch);
  if (!plan.hosts.device.remark.empty()) {
    text += plan.hosts.device.remark + "\n";
  }
  return text + memory_text(plan) + verdict_text(plan) +
         fmt::format("a checkpoint takes {}\n", track::short_bytes(plan.checkpoint_bytes)) +
         time_text(plan);
}

std::string planned_line(const RunPlan& plan) {
  using track::short_bytes;
  const std::string line =
      fmt::format("memory: planned peak {} per rank, plus {} for the program (peak in {}: {})",
                  short_bytes(plan.memory.peak_bytes), short_bytes(plan.constant_bytes),
                  plan.memory.peak_phase, plan.memory.peak_item);
  return plan.fits() ? line
                     : line + fmt::format(
                                  "\nmemory: a rank has {}: the run may run out. sherd plan shows "
                                  "what takes memory, and docs/guide/plan.md what to try",
                                  short_bytes(plan.available_bytes));
}

std::string plan_path(const std::string& output) {
  return (std::filesystem::path(output) / "plan.json").string();
}

}  // namespace llm::plan
