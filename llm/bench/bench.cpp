#include "llm/bench/bench.h"

#include <array>
#include <chrono>
#include <filesystem>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/Parallel.h>
#include <fmt/core.h>

#include "llm/bench/bench_data.h"
#include "llm/bench/matmul_limit.h"
#include "llm/bench/step_products.h"
#include "llm/bench/time_limit.h"
#include "llm/inputs/dataset.h"
#include "llm/io/hf_config.h"
#include "llm/plan/moved_bytes.h"
#include "llm/plan/profiler_recording.h"
#include "llm/plan/run_plan.h"
#include "llm/plan/step_time.h"
#include "llm/plan/tiny_step.h"
#include "llm/setup/device.h"
#include "llm/setup/load_model.h"
#include "llm/setup/options_of_config.h"
#include "llm/setup/peak_memory.h"
#include "llm/train/graphed_micro_batches.h"
#include "llm/train/start.h"
#include "llm/train/train_step.h"
#include "ops/cpu/isa.h"
#include "ops/plain_use.h"
#include "sherd/error.h"
#include "sherd/lora.h"
#include "sherd/state_dict.h"

namespace llm::bench {

namespace {

using Clock = std::chrono::steady_clock;

constexpr double kClipGradNorm = 1.0;
// The step for memory, and the products alone, which take about two.
constexpr std::int64_t kStepsBesides = 3;
constexpr auto kBetweenReports = std::chrono::seconds(1);

// A folder with weights, or a configuration alone.
struct BenchModel {
  io::HfConfig config;
  std::string weights;  ///< folder; empty: random weights
};

BenchModel find_model(const BenchOptions& options) {
  const std::string& path = options.model;
  const io::IgnoredFields ignored{options.ignored_fields, families::IgnoreBy::Flag};
  if (!std::filesystem::is_directory(path)) {
    return {io::read_hf_config(path, ignored), ""};
  }
  BenchModel model{io::read_model_folder_config(path, ignored), ""};
  for (const auto& entry : std::filesystem::directory_iterator(path)) {
    if (entry.path().extension() == ".safetensors") {
      model.weights = path;
    }
  }
  return model;
}

setup::PrepareModule preparation_of(const BenchOptions& options) {
  if (options.lora_rank == 0) {
    return {};
  }
  return [rank = options.lora_rank](model::CausalLm& module) {
    const sherd::LoraShape shape{.rank = rank, .alpha = 2 * static_cast<double>(rank)};
    sherd::lora(*module, {.choose = [&](const std::string& name) {
      return name == "lm_head" ? std::nullopt : std::optional(shape);
    }});
  };
}

sherd::Sharded<model::CausalLm> make_model(const BenchModel& found, const BenchOptions& options,
                                           const sherd::World& world) {
  const sherd::Mesh mesh = sherd::Mesh::of_strategy(world, options.sharding.strategy);
  const setup::PrepareModule prepare = preparation_of(options);
  auto model =
      found.weights.empty()
          ? setup::random_sharded(found.config, mesh, options.sharding, options.seed, prepare)
          : setup::load_sharded(found.weights, mesh, options.sharding,
                                {options.ignored_fields, families::IgnoreBy::Flag}, prepare);
  if (options.lora_rank > 0 && !found.weights.empty()) {
    sherd::initialize(model, options.seed,
                      [](sherd::ParameterInit& parameter) { sherd::initialize_lora(parameter); });
  }
  model.module()->set_attention_kernel(options.attention);
  return model;
}

BenchTokens tokens_of(const BenchOptions& options, std::int64_t vocabulary) {
  return {options.tokens, vocabulary, options.sequence,
          options.answers_only ? kAnswerTokens : options.sequence, options.seed};
}

void check_sequence(const BenchModel& found, const BenchOptions& options) {
  const auto built = sherd::on_meta([&] { return io::build_model(found.config); });
  if (options.sequence > built->context_length()) {
    throw sherd::Error(sherd::ExitCode::Usage,
                       fmt::format("--seq {} is more than the {} tokens that the model in '{}' was "
                                   "made for. Give at most that.",
                                   options.sequence, built->context_length(), options.model));
  }
}

std::vector<std::int64_t> of_all_ranks(sherd::World& world, std::int64_t bytes) {
  std::vector<std::int64_t> values;
  for (const std::string& text : world.all_gather(std::to_string(bytes))) {
    values.push_back(std::stoll(text));
  }
  return values;
}

// Refuses before any weight is made what would take too long.
void check(const BenchModel& found, const BenchOptions& options, sherd::World& world) {
  if (options.update_in_backward &&
      (options.accumulation > 1 || options.sharding.precision.param_dtype == c10::kHalf)) {
    throw sherd::Error(
        sherd::ExitCode::Usage,
        "--update-in-backward uses the gradients of one micro-batch, unscaled: leave "
        "--accum 1 and --dtype bf16 or fp32.");
  }
  check_sequence(found, options);
  // How long a GPU takes is not known before.
  const double step = options.max_minutes && world.device().is_cpu()
                          ? estimated_step_seconds(step_products(found.config, options),
                                                   *options.sharding.precision.param_dtype)
                          : 0;
  check_time_left(static_cast<double>(options.warmup + options.steps + kStepsBesides) * step,
                  options.max_minutes, world);
}

bool profiles_device(const BenchOptions& options, const sherd::World& world) {
  return options.operators && options.steps > 0 && world.device().is_cuda();
}

// Those of a GPU's profile. The profiler keeps some hundred thousand kernels.
int recorded_steps(const BenchOptions& options) {
  constexpr int kFewMicroBatches = 4, kSteps = 3;
  return options.accumulation > kFewMicroBatches ? 1 : kSteps;
}

// Steps that the profile of a GPU makes, with the one that warms the profiler up.
std::int64_t steps_of_profile(const BenchOptions& options, const sherd::World& world) {
  return profiles_device(options, world) ? recorded_steps(options) + 1 : 0;
}

sherd::AdamWMode adamw_mode(const BenchOptions& options) {
  return {.moments_dtype = options.moments_dtype, .in_backward = options.update_in_backward};
}

// Of logits.
std::int64_t row_bytes_of(const BenchModel& found, const BenchOptions& options) {
  return found.config.shape.vocab_size *
         static_cast<std::int64_t>(c10::elementSize(*options.sharding.precision.param_dtype));
}

plan::PlannedRun planned_run(const BenchModel& found, const BenchOptions& options,
                             const sherd::World& world) {
  const auto rows = static_cast<size_t>(options.micro_batch);
  const std::int64_t supervised = options.answers_only ? kAnswerTokens : options.sequence;
  const plan::MicroBatch batch{std::vector<std::int64_t>(rows, options.sequence),
                               std::vector<std::int64_t>(rows, supervised)};
  const plan::Device device = plan::hosts_of(world).device;
  const bool hosts_are_alike = world.size() % world.local_size() == 0;
  return {.model = found.config,
          .prepare = preparation_of(options),
          .ranks = {.size = world.size(),
                    .local_size = hosts_are_alike ? world.local_size() : 1,
                    .device = device.type,
                    .transport = setup::transport_of(options.sharding.offload),
                    .reduce_scatter = options.reduce_scatter},
          .sharding = options.sharding,
          .adamw = adamw_mode(options),
          .loss_chunk_tokens = setup::loss_chunk_tokens(
              options.loss_chunk, row_bytes_of(found, options), device.memory_bytes),
          .attention = plan::attention_on(device, options.attention, found.config.shape,
                                          *options.sharding.precision.param_dtype, batch),
          .micro_batches =
              std::vector<plan::MicroBatch>(static_cast<size_t>(options.accumulation), batch),
          .pooling = device.pooling,
          .libraries_bytes = world.device().is_cpu() ? plan::kHostLibrariesBytes : 0,
          .workspaces_bytes = plan::workspaces_bytes(device, options.cuda_graphs),
          .cuda_graphs = options.cuda_graphs};
}

// One bench: the model, and the steps it makes.
class Bench {
 public:
  Bench(const BenchModel& found, const BenchOptions& options, sherd::World world,
        const setup::ResidentMemory& program)
      : options_(options),
        program_(program),
        world_(std::move(world)),
        found_(found),
        model_(make_model(found_, options, world_)),
        optimizer_(model_, {.lr = options.lr}, {}, adamw_mode(options)),
        tokens_(tokens_of(options, model_.module()->vocab_rows())) {
    setup::set_loss_chunk(model_, options.sharding, options.loss_chunk);
    if (options.sharding.precision.param_dtype == c10::kHalf) {
      scaler_.emplace(model_);
    }
    if (options.cuda_graphs) {
      graphs_.emplace(model_, scaler_ ? &*scaler_ : nullptr, "--cuda-graphs");
    }
  }
  BenchResult run();

 private:
  void step();
  void read_pending();
  void report(double seconds);
  void warm_up();
  void timed_steps();
  [[nodiscard]] std::int64_t held_bytes() const;
  void measure_memory();
  void measure_products();
  void profile_device();
  [[nodiscard]] plan::KnownBytes update_bytes() const;
  [[nodiscard]] std::vector<inputs::Batch> micro_batches() const;

  const BenchOptions& options_;
  const setup::ResidentMemory program_;
  sherd::World world_;
  BenchModel found_;
  sherd::Sharded<model::CausalLm> model_;
  sherd::AdamW optimizer_;
  std::optional<sherd::GradScaler> scaler_;  // of fp16
  std::optional<train::GraphedMicroBatches> graphs_;
  BenchTokens tokens_;
  std::int64_t step_ = 0;
  std::optional<train::LaunchedStep> unread_;  // the last one; on a CPU never between steps
  train::StepOutcome last_;
  std::vector<double> seconds_;                         // of each step that was read
  std::array<double, train::kPhases> phase_seconds_{};  // of them, on a device
  Clock::time_point last_report_;
  BenchResult result_;
};

std::vector<inputs::Batch> Bench::micro_batches() const {
  std::vector<inputs::Batch> batches;
  for (std::int64_t micro = 0; micro < options_.accumulation; ++micro) {
    const std::int64_t number =
        (step_ * options_.accumulation + micro) * world_.size() + world_.rank();
    batches.push_back(bench_batch(tokens_, number * options_.micro_batch, options_.micro_batch));
  }
  return batches;
}

// A device is at one step while the host launches the next.
void Bench::step() {
  train::StepClock clock(world_.device());
  const train::StepPlan plan{.number = step_ + 1,
                             .clip_grad_norm = kClipGradNorm,
                             .updated_in_backward = options_.update_in_backward,
                             .left_out = unread_ ? unread_->left_out() : at::Tensor(),
                             .graphs = graphs_ ? &*graphs_ : nullptr};
  train::LaunchedStep launched = train::launch_step(
      model_, optimizer_, scaler_ ? &*scaler_ : nullptr, micro_batches(), plan, std::move(clock));
  ++step_;
  read_pending();
  unread_ = std::move(launched);
  if (world_.device().is_cpu()) {
    read_pending();
  }
}

void Bench::read_pending() {
  if (!unread_) {
    return;
  }
  last_ = unread_->read(world_);
  unread_.reset();
  if (result_.losses.empty()) {
    result_.seconds_to_first_step =
        std::chrono::duration<double>(Clock::now() - options_.started).count();
  }
  result_.tokens_a_step = last_.tokens;
  result_.losses.push_back(last_.loss);
  if (!options_.update_in_backward) {
    result_.grad_norms.push_back(last_.grad_norm);
  }
  seconds_.push_back(last_.seconds);
  for (const auto& [phase, seconds] : last_.phase_seconds) {
    phase_seconds_[static_cast<size_t>(phase)] += seconds;
  }
  report(last_.seconds);
}

void Bench::report(double seconds) {
  if (options_.progress == nullptr) {
    return;
  }
  const std::int64_t all =
      options_.warmup + options_.steps + 1 + steps_of_profile(options_, world_);
  const std::string line = fmt::format("step {} of {}: {:.3f} s", step_, all, seconds);
  options_.progress->set(line);
  if (const auto now = Clock::now(); now - last_report_ >= kBetweenReports) {
    last_report_ = now;
    options_.progress->say(line);
  }
}

void Bench::timed_steps() {
  const bool by_operator = options_.operators && !profiles_device(options_, world_);
  train::StepProfile profile(by_operator ? train::StepProfile::Detail::Operators
                                         : train::StepProfile::Detail::Phases);
  read_pending();
  seconds_.clear();
  phase_seconds_ = {};
  for (std::int64_t i = 0; i < options_.steps; ++i) {
    step();
  }
  read_pending();
  result_.step_seconds = seconds_;
  const auto steps = static_cast<double>(options_.steps);
  for (train::StepProfile::Entry entry : profile.entries()) {
    entry.seconds /= steps;
    if (world_.device().is_cpu()) {  // else it is what the host takes to launch
      result_.split_seconds[static_cast<size_t>(entry.phase)] += entry.seconds;
    }
    if (by_operator) {
      result_.operators.push_back(std::move(entry));
    }
  }
  for (size_t phase = 0; phase < phase_seconds_.size(); ++phase) {
    result_.split_seconds[phase] += phase_seconds_[phase] / steps;
  }
  double named = 0;
  for (const double seconds : result_.split_seconds) {
    named += seconds;
  }
  double all = 0;
  for (const double seconds : result_.step_seconds) {
    all += seconds / steps;
  }
  result_.split_seconds[static_cast<size_t>(train::Phase::Other)] += all - named;
  world_.all_reduce(result_.step_seconds, sherd::ReduceOp::Max);
}

// Of files as much as the program had mapped before, even where the system has taken away pages.
std::int64_t Bench::held_bytes() const {
  if (!world_.device().is_cpu()) {
    return setup::held_bytes_of(world_);
  }
  const setup::ResidentMemory now = setup::resident_memory(world_.local_size());
  return now.own_bytes + std::max(now.file_bytes, program_.file_bytes);
}

void Bench::measure_memory() {
  std::int64_t largest = 0;
  {
    train::StepProfile profile(train::StepProfile::Detail::Phases);
    profile.set_at_phase_end([&] { largest = std::max(largest, held_bytes()); });
    step();
    read_pending();
  }
  result_.peak_rank_pss_bytes = of_all_ranks(world_, largest);
  result_.peak_rank_bytes = of_all_ranks(world_, setup::peak_bytes_on(world_.device()));
}

// Its last step tells how long the timed ones will take.
void Bench::warm_up() {
  for (std::int64_t i = 0; i < options_.warmup; ++i) {
    step();
  }
  read_pending();
  const std::int64_t left = options_.steps + kStepsBesides + steps_of_profile(options_, world_);
  check_time_left(static_cast<double>(left) * last_.seconds, options_.max_minutes, world_);
}

void Bench::measure_products() {
  if (!world_.device().is_cpu()) {
    return;  // their limit is known of CPUs alone
  }
  const track::Working measuring(options_.progress, "measuring matrix products alone");
  const auto shapes = step_products(found_.config, options_);
  world_.barrier();  // all ranks multiply at the same time, as in a step
  result_.matmul_limit_seconds =
      matmul_seconds(shapes, options_.sharding.precision.param_dtype.value_or(c10::kFloat));
  world_.barrier();
  result_.matmul_operations = matmul_operations(shapes);
}

// What AdamW reads and writes of this rank's shard: no operator's arguments say so.
plan::KnownBytes Bench::update_bytes() const {
  const plan::PlannedRun run = planned_run(found_, options_, world_);
  const double shard = plan::elements_of(run) / plan::shards_of(run);
  return {{plan::KernelGroup::AdamW, shard * plan::update_bytes_a_parameter(run)}};
}

// In steps of its own, since a profiler slows them down.
void Bench::profile_device() {
  const plan::Device device = plan::hosts_of(world_).device;
  const auto make_steps = [&](int count) {
    for (int i = 0; i < count; ++i) {
      step();
    }
    read_pending();
  };
  result_.device_time =
      plan::profile_steps(world_.device(), recorded_steps(options_),
                          plan::limits_of(device, *options_.sharding.precision.param_dtype,
                                          plan::readable_gpu_rates(device.name)),
                          update_bytes(), make_steps);
}

BenchResult Bench::run() {
  const track::Working training(options_.progress, "the first step");
  warm_up();
  if (options_.steps > 0) {
    timed_steps();
  }
  measure_memory();
  if (options_.steps > 0) {
    measure_products();
  }
  if (profiles_device(options_, world_)) {
    profile_device();
  }
  result_.transport = world_.transport();
  result_.attention = sherd::ops::attention_choices(world_.device());
  if (!world_.device().is_cpu()) {
    result_.kernels = sherd::ops::kernels_text(world_.device());
  }
  return result_;
}

BenchResult measured(const BenchModel& found, const BenchOptions& options,
                     const sherd::World& world, const setup::ResidentMemory& program) {
  auto making = std::make_unique<track::Working>(options.progress, "making the model");
  Bench bench(found, options, world, program);
  making.reset();
  return bench.run();
}

}  // namespace

std::string config_digest(const BenchOptions& options) {
  static_cast<void>(find_model(options));  // says what is wrong with it
  const std::filesystem::path model = options.model;
  return inputs::read_data_file(is_directory(model) ? model / "config.json" : model).sha256;
}

BenchResult bench(const BenchOptions& options, sherd::World world) {
  const BenchModel found = find_model(options);
  check(found, options, world);
  if (options.give_back_memory) {
    options.give_back_memory();
  }
  auto planning = std::make_unique<track::Working>(options.progress, "planning memory");
  const setup::ResidentMemory program =
      world.device().is_cpu()
          ? plan::program_memory(found.config, options.sharding, world.local_size())
          : setup::ResidentMemory{};
  const plan::PlannedRun run = planned_run(found, options, world);
  plan::MemoryPlan planned = [&] {
    const plan::PathOfPlan path(world.device().type());
    return plan::plan_memory(run);
  }();
  planning.reset();
  BenchResult result = measured(found, options, world, program);
  result.isa = setup::path_of(world);
  result.planned = std::move(planned);
  const plan::Device device = plan::hosts_of(world).device;
  const track::Working timing(options.progress, "planning a step's time");
  const plan::PathOfPlan path(world.device().type());
  const plan::Rates rates = plan::rates_of(device, {run.ranks.local_size, at::get_num_threads()});
  result.planned_time =
      plan::plan_step_time(run, rates,
                           plan::links_of(device, run.ranks.size / run.ranks.local_size,
                                          run.ranks.local_size, options.link_gb_per_second, rates));
  result.planned_rates = rates.source;
  result.constant_rank_pss_bytes = of_all_ranks(world, program.bytes());
  return result;
}

}  // namespace llm::bench
