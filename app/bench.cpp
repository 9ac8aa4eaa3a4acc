// sherd bench --model CONFIG_JSON_OR_DIR --ranks N …

#include "llm/bench/bench.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include <ATen/ops/empty.h>
#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include "app/allocator.h"
#include "app/device.h"
#include "app/dtypes.h"
#include "app/hub_names.h"
#include "app/ignore_fields.h"
#include "app/launch.h"
#include "app/live_line.h"
#include "app/numbers.h"
#include "app/rank.h"
#include "app/threads.h"
#include "app/verbs.h"
#include "launch/spinning.h"
#include "llm/bench/calibrate.h"
#include "llm/bench/gpu_calibration.h"
#include "llm/config/measures.h"
#include "llm/plan/run_plan.h"
#include "llm/setup/agreement.h"
#include "llm/setup/device.h"
#include "llm/setup/options_of_config.h"
#include "llm/train/start.h"
#include "ops/backend.h"
#include "sherd/error.h"

namespace app {

namespace {

using llm::bench::BenchResult;
using llm::train::StepProfile;

struct BenchFlags {
  llm::bench::BenchOptions options;
  std::optional<int> ranks;
  std::optional<int> threads;  // none: 1, and to calibrate all cores in use
  std::string dtype = "bf16";
  std::string master = "float32";
  std::string reduce_dtype = "fp32";
  std::string moments = "fp32";
  std::string reduce_scatter = "rank_order";
  std::string strategy = "full_shard";
  std::string attention = "auto";
  std::string supervised = "all";
  std::string max_minutes = "10";
  llm::config::DeviceKind device = llm::config::DeviceKind::Auto;
  bool checkpoint_activations = false;
  bool profile = false;
  bool calibrate = false;
  bool json = false;
};

// "bf16" also for "bfloat16".
std::string short_name_of(c10::ScalarType dtype) {
  return dtype == c10::kFloat ? "fp32" : dtype == c10::kHalf ? "fp16" : "bf16";
}

struct Spread {
  double median = 0;
  double min = 0;
  double max = 0;
};

Spread spread_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return {values[values.size() / 2], values.front(), values.back()};
}

nlohmann::ordered_json times_json(const BenchResult& result) {
  const Spread step = spread_of(result.step_seconds);
  nlohmann::ordered_json split;
  for (int i = 0; i < llm::train::kPhases; ++i) {
    split[llm::train::name_of(static_cast<llm::train::Phase>(i))] =
        result.split_seconds[static_cast<size_t>(i)];
  }
  return {{"step_seconds", {{"median", step.median}, {"min", step.min}, {"max", step.max}}},
          {"all_step_seconds", result.step_seconds},
          {"tokens_per_second", static_cast<double>(result.tokens_a_step) / step.median},
          {"split_seconds", split},
          {"matmul_limit_seconds", result.matmul_limit_seconds > 0
                                       ? nlohmann::ordered_json(result.matmul_limit_seconds)
                                       : nlohmann::ordered_json()},
          {"matmul_operations_per_rank", result.matmul_operations}};
}

nlohmann::ordered_json attention_json(const BenchResult& result) {
  auto all = nlohmann::ordered_json::array();
  for (const sherd::ops::AttentionChoice& choice : result.attention) {
    all.push_back({{"kernel", sherd::ops::name_of(choice.kernel)},
                   {"heads", choice.heads},
                   {"key_heads", choice.key_heads},
                   {"head_size", choice.head_size},
                   {"dtype", short_name_of(choice.dtype)},
                   {"alibi", choice.has_alibi},
                   {"equal_lengths", choice.has_equal_lengths},
                   {"window", choice.window},
                   {"soft_cap", choice.has_soft_cap},
                   {"why", choice.why}});
  }
  return all;
}

nlohmann::ordered_json to_json(const BenchResult& result, const BenchFlags& flags) {
  nlohmann::ordered_json line = {
      {"isa", result.isa},
      {"kernels", result.kernels},
      {"attention", attention_json(result)},
      {"dtype", short_name_of(*flags.options.sharding.precision.param_dtype)},
      {"master", flags.master},
      {"moments", flags.moments},
      {"offloaded_bytes", result.planned.offloaded_bytes},
      {"host_bytes", result.planned.host_bytes},
      {"transport", result.transport},
      {"seconds_to_first_step", result.seconds_to_first_step}};
  if (flags.options.steps > 0) {
    line.update(times_json(result));
  }
  line.update({{"peak_rank_bytes", result.peak_rank_bytes},
               {"peak_rank_pss_bytes", result.peak_rank_pss_bytes},
               {"constant_rank_pss_bytes", result.constant_rank_pss_bytes},
               {"planned_peak_bytes", result.planned.peak_bytes},
               {"planned_phases", llm::plan::phases_json(result.planned)},
               {"planned_step_seconds", result.planned_time.step_seconds},
               {"planned_rates", result.planned_rates},
               {"losses", result.losses},
               {"grad_norms", result.grad_norms}});
  if (result.device_time) {
    line.update(llm::plan::json_of(*result.device_time));
  } else if (flags.profile) {
    for (const StepProfile::Entry& entry : result.operators) {
      line["operators"].push_back({{"phase", llm::train::name_of(entry.phase)},
                                   {"name", entry.name},
                                   {"seconds", entry.seconds},
                                   {"calls", entry.calls}});
    }
  }
  return line;
}

void print_times(const BenchResult& result) {
  const Spread step = spread_of(result.step_seconds);
  say(fmt::format("step {:.3f} s ({:.3f} - {:.3f}), {:.1f} tokens/s", step.median, step.min,
                  step.max, static_cast<double>(result.tokens_a_step) / step.median));
  if (result.matmul_limit_seconds > 0) {
    say(fmt::format(
        "matrix products alone: {:.3f} s ({:.1f} GFLOP/s per rank); step / products = {:.3f}",
        result.matmul_limit_seconds, result.matmul_operations / result.matmul_limit_seconds / 1e9,
        step.median / result.matmul_limit_seconds));
  }
  for (int i = 0; i < llm::train::kPhases; ++i) {
    say(fmt::format("  {:<10} {:8.4f} s", llm::train::name_of(static_cast<llm::train::Phase>(i)),
                    result.split_seconds[static_cast<size_t>(i)]));
  }
}

void print_table(const BenchResult& result, const BenchFlags& flags) {
  if (flags.options.steps > 0) {
    print_times(result);
  }
  say("computed by: " + result.isa);
  if (!result.kernels.empty()) {
    say("kernels: " + result.kernels);
  }
  for (const sherd::ops::AttentionChoice& choice : result.attention) {
    say("attention: " + sherd::ops::text_of(choice));
  }
  say("exchange between ranks: " + result.transport);
  for (size_t rank = 0; rank < result.peak_rank_bytes.size(); ++rank) {
    say(fmt::format("rank {}: peak {:.2f} GiB resident, {:.2f} GiB with shared pages divided", rank,
                    static_cast<double>(result.peak_rank_bytes[rank]) / (1 << 30),
                    static_cast<double>(result.peak_rank_pss_bytes[rank]) / (1 << 30)));
  }
  say(fmt::format("loss {:.6f} -> {:.6f}", result.losses.front(), result.losses.back()));
  if (result.device_time) {
    for (const std::string& row : llm::plan::lines_of(*result.device_time)) {
      say(row);
    }
  } else if (flags.profile) {
    for (const StepProfile::Entry& entry : result.operators) {
      say(fmt::format("  {:9.5f} s  {:6.1f} calls  {:<9} {}", entry.seconds,
                      static_cast<double>(entry.calls) / static_cast<double>(flags.options.steps),
                      llm::train::name_of(entry.phase), entry.name));
    }
  }
}

std::string given_or_not(const std::string& value) {
  return value.empty() ? "not given" : "given";
}

std::string number_or_auto(const std::optional<std::int64_t>& number) {
  return number ? std::to_string(*number) : "auto";
}

// Settings that must agree on all ranks.
llm::setup::Settings bench_settings(const BenchFlags& flags) {
  const llm::bench::BenchOptions& options = flags.options;
  return {{"--seq", std::to_string(options.sequence)},
          {"--micro-batch", std::to_string(options.micro_batch)},
          {"--accum", std::to_string(options.accumulation)},
          {"--steps", std::to_string(options.steps)},
          {"--warmup", std::to_string(options.warmup)},
          {"--seed", std::to_string(options.seed)},
          {"--lr", llm::config::float_text(options.lr)},
          {"--dtype", short_name_of(*options.sharding.precision.param_dtype)},
          {"--strategy", flags.strategy},
          {"--master", flags.master},
          {"--offload-optimizer", given_or_not(options.sharding.offload.optimizer_folder)},
          {"--offload-gradients", given_or_not(options.sharding.offload.gradient_folder)},
          {"--offload-parameters", given_or_not(options.sharding.offload.parameter_folder)},
          {"--offload-host", std::to_string(options.sharding.offload.optimizer_on_host) +
                                 std::to_string(options.sharding.offload.gradients_on_host) +
                                 std::to_string(options.sharding.offload.parameters_on_host) +
                                 std::to_string(options.sharding.offload.activations_on_host)},
          {"--supervised", flags.supervised},
          {"--max-minutes", flags.max_minutes},
          {"--reduce-dtype", flags.reduce_dtype},
          {"--moments", flags.moments},
          {"--reduce-scatter", flags.reduce_scatter},
          {"--loss-chunk-tokens", number_or_auto(options.loss_chunk.tokens)},
          {"--loss-chunk-bytes", number_or_auto(options.loss_chunk.bytes)},
          {"--lora-rank", std::to_string(options.lora_rank)},
          {"--cuda-graphs", options.cuda_graphs ? "given" : "not given"},
          {"--attention", flags.attention},
          {"--update-in-backward", options.update_in_backward ? "given" : "not given"},
          {"--checkpoint-activations", flags.checkpoint_activations ? "given" : "not given"},
          {"the model's config.json (SHA-256)", llm::bench::config_digest(options)}};
}

// Parses a value that passed above_zero_or_none().
std::optional<double> minutes_of(const std::string& text) {
  return text == "none" ? std::nullopt : std::optional(std::stod(text));
}

// The table of this rank's GPU.
void calibrate_gpu(const sherd::World& world,
                   const std::function<void(const std::string&)>& say_line) {
  const llm::plan::Device device = llm::plan::hosts_of(world).device;
  const auto backend = sherd::ops::backend_of(
      at::empty({0}, at::TensorOptions(at::kBFloat16).device(world.device())));
  llm::plan::GpuRates shipped = llm::plan::shipped_rates_of(device);
  shipped.source = fmt::format("measured on this kind of GPU, {}", llm::setup::path_of(world));
  const llm::plan::GpuRates rates =
      llm::bench::calibrate_kernels(backend, world.device(), shipped, {}, say_line);
  say(fmt::format("rates of {} written to {}", device.name,
                  llm::plan::save_gpu_rates(device.name, rates)));
}

// Saves the rates that `sherd plan` uses.
int calibrate(Rank& rank, const BenchFlags& flags) {
  const auto progress = progress_of(rank, /*json_on_stdout=*/true);
  auto working = std::make_unique<llm::track::Working>(progress.get(), "starting");
  sherd::World world = rank.join({.device = device_of(rank, flags.device)});
  if (!world.device().is_cpu()) {
    llm::bench::check_ranks_of_kernels(world);
  }
  if (world.local_size() != world.size()) {
    throw sherd::Error(
        sherd::ExitCode::Usage,
        fmt::format("sherd bench --calibrate measures the ranks of one host, and these {} are on "
                    "several: run it once on each kind of host, with `-n {}`",
                    world.size(), world.local_size()));
  }
  const int threads =
      flags.threads.value_or(std::max(1, sherd::launch::usable_cores() / world.size()));
  use_threads(threads);
  const auto say_line = [&](const std::string& line) {
    if (progress) {
      progress->set(line);
      progress->say(line);
    }
  };
  if (!world.device().is_cpu()) {
    calibrate_gpu(world, say_line);
    return static_cast<int>(sherd::ExitCode::Done);
  }
  llm::plan::Rates rates =
      llm::bench::calibrate(world, llm::bench::references(),
                            [&](const std::string& what) { say_line("measuring " + what); });
  working.reset();
  if (rank.is_first()) {
    const llm::plan::RateKey key{world.size(), threads};
    rates.source =
        fmt::format("measured on this kind of processor with {} × {}", key.ranks, threads);
    say(fmt::format("rates of {} × {} written to {}", key.ranks, threads,
                    llm::plan::save_rates(key, rates)));
  }
  return static_cast<int>(sherd::ExitCode::Done);
}

int bench(Rank& rank, BenchFlags flags) {
  use_threads(flags.threads.value_or(1));
  flags.options.sharding.strategy = llm::setup::strategies_by_name().at(flags.strategy);
  flags.options.sharding.precision.param_dtype = dtypes_by_name().at(flags.dtype);
  flags.options.moments_dtype = flags.moments == "bf16" ? c10::kBFloat16 : c10::kFloat;
  flags.options.reduce_scatter = flags.reduce_scatter == "native" ? sherd::ReduceScatter::Native
                                                                  : sherd::ReduceScatter::RankOrder;
  flags.options.sharding.precision.master = llm::setup::masters_by_name().at(flags.master);
  flags.options.sharding.precision.reduce_dtype = dtypes_by_name().at(flags.reduce_dtype);
  flags.options.sharding.units =
      sherd::unit_policy::every_unit({.checkpoint_activations = flags.checkpoint_activations});
  sherd::Offload& offload = flags.options.sharding.offload;
  for (const auto& [folder, on_host] :
       {std::pair(&offload.optimizer_folder, &offload.optimizer_on_host),
        std::pair(&offload.gradient_folder, &offload.gradients_on_host),
        std::pair(&offload.parameter_folder, &offload.parameters_on_host)}) {
    constexpr std::string_view kDisk = "disk:";  // as recipes say it
    if (*folder == "host" || *folder == "none") {
      *on_host = *folder == "host";
      folder->clear();
    } else if (folder->starts_with(kDisk)) {
      folder->erase(0, kDisk.size());
    }
  }
  flags.options.attention = llm::setup::attention_kernels_by_name().at(flags.attention);
  flags.options.answers_only = flags.supervised == "answer";
  flags.options.operators = flags.profile;
  flags.options.max_minutes = minutes_of(flags.max_minutes);
  const auto progress = progress_of(rank, /*json_on_stdout=*/true);  // the result's is the other
  auto working = std::make_unique<llm::track::Working>(progress.get(), "starting");
  HubNames names({.json_on_stdout = true, .progress = progress.get()}, &rank);
  names.resolve_model(flags.options.model, "--model");
  sherd::World world =
      rank.join({.device = device_of(rank, flags.device),
                 .transport = llm::setup::transport_of(flags.options.sharding.offload),
                 .reduce_scatter = flags.options.reduce_scatter});
  names.require_same(world);
  const std::string notice = llm::setup::agree_on_start(
      world, llm::setup::read_on_all_ranks(world, [&] { return bench_settings(flags); }));
  if (progress && !notice.empty()) {
    progress->say(notice);
  }
  flags.options.progress = progress.get();
  flags.options.give_back_memory = give_back_free_memory;
  const BenchResult result = llm::bench::bench(flags.options, world);
  working.reset();
  if (rank.is_first()) {
    flags.json ? print_result(to_json(result, flags).dump()) : print_table(result, flags);
  }
  return static_cast<int>(sherd::ExitCode::Done);
}

void add_flags(CLI::App& verb, BenchFlags& flags) {
  auto& options = flags.options;
  const auto positive = within(std::int64_t{1}, std::int64_t{1} << 30);
  verb.option_defaults()->always_capture_default();
  verb.add_option("--model", options.model, "the model: config.json, or a Hugging Face folder");
  add_ignore_fields(verb, options.ignored_fields);
  verb.add_option("-n,--ranks", flags.ranks, "ranks to start on this host (default: 1)")
      ->check(within(1, 1024));
  verb.add_option(
          "--threads", flags.threads,
          "CPU threads per rank (default: 1; with --calibrate the rank's share of the cores)")
      ->check(within(1, 1024));
  verb.add_option("--seq", options.sequence, "tokens per sample")
      ->check(within(std::int64_t{2}, std::int64_t{1} << 20));
  verb.add_option("--micro-batch", options.micro_batch, "samples per rank and micro-batch")
      ->check(positive);
  verb.add_option("--accum", options.accumulation, "micro-batches per step")->check(positive);
  verb.add_option("--steps", options.steps, "timed steps; 0: measure memory only")
      ->check(at_least_zero());
  verb.add_option("--warmup", options.warmup, "steps before the timed ones")
      ->check(at_least_zero());
  verb.add_option("--link", options.link_gb_per_second,
                  "bandwidth of each host's link, GB/s, for the planned time of a step")
      ->check(above_zero());
  verb.add_option("--max-minutes", flags.max_minutes,
                  "refuse a bench that would take longer; none: no limit")
      ->check(above_zero_or_none());
  add_device_flag(verb, flags.device);
  one_of(verb.add_option("--dtype", flags.dtype, "dtype of parameters and gradients"),
         dtype_words());
  one_of(verb.add_option("--master", flags.master,
                         "format of master weights under bf16; split saves 2 bytes per parameter; "
                         "bfloat16 saves 4, with stochastic rounding"),
         names_in(llm::setup::masters_by_name()));
  one_of(verb.add_option(
             "--reduce-dtype", flags.reduce_dtype,
             "dtype of gradient sums; bf16, with --dtype bf16, saves 2 bytes per parameter"),
         {"fp32", "bf16"});
  one_of(
      verb.add_option(
          "--moments", flags.moments,
          "dtype of AdamW's moments; bf16 saves 4 bytes per parameter, with stochastic rounding"),
      {"fp32", "bf16"});
  one_of(verb.add_option("--reduce-scatter", flags.reduce_scatter,
                         "how GPUs sum gradients; native: NCCL's reduce-scatter in --reduce-dtype"),
         {"rank_order", "native"});
  verb.add_option("--loss-chunk-tokens", options.loss_chunk.tokens,
                  "rows of logits that the loss holds at a time (default: by --loss-chunk-bytes)")
      ->check(positive);
  verb.add_option("--loss-chunk-bytes", options.loss_chunk.bytes,
                  "bytes of logits that the loss holds at a time (default: 1/32 of a GPU's memory; "
                  "on a CPU 512 rows)")
      ->check(within(std::int64_t{1}, std::int64_t{1} << 40));
  verb.add_option("--lora-rank", options.lora_rank,
                  "train LoRA adapters of this rank on every linear layer but the head; 0: train "
                  "all parameters")
      ->check(at_least_zero());
  verb.add_flag("--cuda-graphs", options.cuda_graphs,
                "run micro-batches as CUDA graphs, with one launch each");
  one_of(verb.add_option("--attention", flags.attention,
                         "attention kernel on GPUs; auto: the fastest that supports the model"),
         names_in(llm::setup::attention_kernels_by_name()));
  verb.add_flag(
      "--update-in-backward", options.update_in_backward,
      "update during backward: only one block's gradients are held at a time, without clipping");
  verb.add_option(
      "--offload-optimizer", options.sharding.offload.optimizer_folder,
      "store masters and moments on a disk, FOLDER or disk:FOLDER; host: on the GPU's host");
  verb.add_option("--offload-gradients", options.sharding.offload.gradient_folder,
                  "the same for gradient sums");
  verb.add_option("--offload-parameters", options.sharding.offload.parameter_folder,
                  "the same for parameter shards; several ranks then share no memory");
  verb.add_flag("--offload-activations", options.sharding.offload.activations_on_host,
                "store activations on the GPU's host until backward");
  one_of(verb.add_option("--strategy", flags.strategy, "sharding strategy"),
         names_in(llm::setup::strategies_by_name()));
  one_of(verb.add_option("--supervised", flags.supervised,
                         "supervise all tokens, or the last 8 of each sample"),
         {"all", "answer"});
  verb.add_option("--tokens", options.tokens, "file of int32 token ids, read in order");
  verb.add_option("--seed", options.seed, "seed of weights and token ids");
  verb.add_option("--lr", options.lr, "learning rate")->check(at_least_zero());
  verb.add_flag("--checkpoint-activations", flags.checkpoint_activations,
                "recompute activations in backward");
  verb.add_flag("--profile", flags.profile,
                "print the time of each operator; on a GPU, of each group of kernels");
  verb.add_flag("--calibrate", flags.calibrate,
                "measure only the rates that sherd plan uses: a GPU's kernels, or this CPU's "
                "operators with these ranks and threads");
  verb.add_flag("--json", flags.json, "print one line of JSON on standard output");
}

}  // namespace

void add_bench(CLI::App& program, Verb& chosen) {
  CLI::App* verb = program.add_subcommand(
      "bench", "Measure how fast this machine trains a model, and what takes time and memory");
  auto flags = std::make_shared<BenchFlags>();
  add_flags(*verb, *flags);
  verb->footer("Example: sherd bench --model config.json --ranks 2 --threads 1 --seq 512 --json");
  verb->callback([verb, flags, &chosen] {
    if (!flags->calibrate && verb->count("--model") == 0) {
      throw CLI::RequiredError("--model");
    }
    chosen = [flags] {
      if (const auto code = start_ranks(flags->ranks)) {
        return *code;
      }
      Rank rank(OnSignal::EndProcess);
      return rank.run(
          [&] { return flags->calibrate ? calibrate(rank, *flags) : bench(rank, *flags); });
    };
  });
}

}  // namespace app
