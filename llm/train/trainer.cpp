#include "llm/train/trainer.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <memory>

#include "llm/data/loader.h"
#include "llm/io/import.h"
#include "llm/io/model_factory.h"
#include "llm/track/jsonl_log.h"
#include "llm/track/plan_text.h"
#include "llm/track/step_record.h"
#include "llm/train/checkpoints.h"
#include "llm/train/load_model.h"
#include "llm/train/output_folder.h"
#include "llm/train/peak_memory.h"
#include "llm/train/run_note.h"
#include "llm/train/schedule.h"
#include "llm/train/tokenize_once.h"
#include "llm/train/train_step.h"
#include "sherd/error.h"

namespace llm::train {

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

sherd::Strategy strategy_of(config::Strategy strategy) {
  switch (strategy) {
    case config::Strategy::FullShard:
      return sherd::Strategy::FullShard;
    case config::Strategy::ShardGradOp:
      return sherd::Strategy::ShardGradOp;
    case config::Strategy::NoShard:
      return sherd::Strategy::NoShard;
    case config::Strategy::HybridShard:
      return sherd::Strategy::HybridShard;
    case config::Strategy::HybridShardGradOp:
      return sherd::Strategy::HybridShardGradOp;
  }
  return sherd::Strategy::FullShard;
}

sherd::Mesh mesh_of(const config::ParallelSection& parallel, const sherd::World& world) {
  const bool hybrid = parallel.strategy == config::Strategy::HybridShard ||
                      parallel.strategy == config::Strategy::HybridShardGradOp;
  const auto size = static_cast<int>(parallel.shard_size);
  return hybrid ? sherd::Mesh::hybrid(world, size == 0 ? world.local_size() : size)
                : sherd::Mesh::shard(world);
}

sherd::ShardOptions shard_options(const config::RunConfig& config) {
  sherd::ShardOptions options;
  options.strategy = strategy_of(config.parallel.strategy);
  options.reshard_after_forward_size = static_cast<int>(config.parallel.reshard_after_forward_size);
  options.units = sherd::unit_policy::every_unit(
      {.checkpoint_activations = config.memory.activation_checkpointing});
  options.prefetch_depth = static_cast<int>(config.parallel.prefetch_depth);
  options.precision.param_dtype =
      config.precision.param_dtype == config::ParamDtype::Float32 ? c10::kFloat : c10::kBFloat16;
  return options;
}

sherd::Sharded<model::CausalLm> make_model(const config::RunConfig& config,
                                           const sherd::World& world) {
  const std::string& folder = config.model.path;
  const sherd::Mesh mesh = mesh_of(config.parallel, world);
  const sherd::ShardOptions options = shard_options(config);
  const io::HfConfig shape = io::read_model_folder_config(folder);
  if (config.model.init == config::Init::Random) {
    return random_sharded(shape, mesh, options, static_cast<std::uint64_t>(config.train.seed));
  }
  try {
    return load_sharded(folder, mesh, options);
  } catch (const sherd::Error& error) {
    if (io::has_weights(folder)) {
      throw;
    }
    throw sherd::Error(error.code(), error.what() + std::string(". To start from random weights "
                                                                "give model.init = \"random\""));
  }
}

sherd::AdamWOptions adamw_options(const config::OptimSection& optim) {
  return {optim.lr, {optim.betas[0], optim.betas[1]}, optim.eps, optim.weight_decay};
}

sherd::AdamWMode adamw_mode(const config::MemorySection& memory) {
  const bool narrow = memory.moments_dtype == config::MomentsDtype::BFloat16;
  return {.moments_dtype = narrow ? c10::kBFloat16 : c10::kFloat};
}

// One run: what run() builds once and each step uses.
class Run {
 public:
  Run(const config::RunConfig& config, sherd::World world, const RunHooks& hooks);
  RunOutcome train();

 private:
  void say_plan() const;
  void load_data();
  void resume();
  void step(std::int64_t number);
  void evaluate();
  void save(std::int64_t number);
  void record(std::int64_t number, const StepOutcome& outcome, double lr, double seconds,
              double data_wait_seconds);
  void say(const std::string& line) const {
    if (world_.rank() == 0) {
      hooks_.say(line);
    }
  }

  const config::RunConfig& config_;
  sherd::World world_;
  const RunHooks& hooks_;
  data::BatchShape shape_;
  text::Tokenizer tokenizer_;
  sherd::Sharded<model::CausalLm> model_;
  sherd::AdamW optimizer_;
  Checkpoints checkpoints_;
  std::int64_t samples_ = 0;  // to train on
  std::unique_ptr<data::Loader> loader_;
  std::optional<data::Dataset> heldout_;
  std::unique_ptr<track::JsonlLog> log_;  // on rank 0
  std::int64_t total_steps_ = 0;
  std::int64_t first_step_ = 1;
  Clock::time_point started_;
  RunOutcome outcome_;
};

Run::Run(const config::RunConfig& config, sherd::World world, const RunHooks& hooks)
    : config_(config),
      world_(std::move(world)),
      hooks_(hooks),
      shape_{config.train.global_batch, config.train.micro_batch, world_.size()},
      tokenizer_(load_tokenizer(config.model.path)),
      model_(make_model(config, world_)),
      optimizer_(model_, adamw_options(config.optim), {}, adamw_mode(config.memory)),
      checkpoints_(config.train.output) {
  const bool narrow = config.memory.moments_dtype == config::MomentsDtype::BFloat16;
  model_.module()->set_loss_chunk_tokens(config.memory.loss_chunk_tokens);
  say("dtypes: " + model_.dtypes() + "; moments " + (narrow ? "BFloat16" : "Float"));
  say_plan();
  load_data();
  resume();
}

void Run::say_plan() const {
  const auto micro_batches = static_cast<int>(shape_.micro_batches(shape_.global_batch));
  const std::int64_t bytes = model_.planned_peak_bytes({.count = micro_batches});
  say("units:\n" + track::short_plan(model_.plan()) +
      "planned peak of a rank, activations aside: " + track::short_bytes(bytes));
}

void Run::load_data() {
  model::CausalLmImpl& lm = *model_.module();
  tokenizer_.check_vocabulary(lm.vocab_rows());
  const std::int64_t context = lm.context_length();
  const std::int64_t length =
      config_.data.max_length == 0 ? context : std::min(config_.data.max_length, context);
  const text::PromptEncoder encoder(tokenizer_, {length, config_.data.max_answer_tokens});
  const data::TokenCache cache(config_.data.cache);
  const auto tokens_of = [&](const std::string& path, std::int64_t limit) {
    data::TokenizedFile file = tokenize_once(world_, cache, path, encoder, limit,
                                             [this](const std::string& line) { say(line); });
    say(file.report.sentence());
    return file;
  };
  const data::TokenizedFile training = tokens_of(config_.data.train, config_.data.train_limit);
  if (!config_.data.eval.empty()) {
    data::TokenizedFile heldout = tokens_of(config_.data.eval, config_.data.eval_limit);
    heldout_ = data::Dataset{data::read_questions(config_.data.eval, config_.data.eval_limit),
                             std::move(heldout.samples), std::move(heldout.report)};
  }
  samples_ = static_cast<std::int64_t>(training.samples.size());
  const auto seed = static_cast<std::uint64_t>(config_.train.seed);
  const data::Sampler sampler(samples_, config_.train.global_batch, seed);
  loader_ = std::make_unique<data::Loader>(training.samples, sampler, shape_, world_.rank());
  total_steps_ = config_.train.max_steps > 0 ? config_.train.max_steps
                                             : config_.train.epochs * sampler.steps_per_epoch();
}

void Run::resume() {
  const auto found = checkpoints_.resume_from(config_.checkpoint.resume);
  // Rank 0 decides: a file system may show the others a checkpoint a little later.
  const std::string folder = world_.all_gather(found ? found->string() : "").front();
  if (!folder.empty()) {
    const auto manifest = sherd::CheckpointManifest::read(folder);
    const RunNote note = note_from_text(manifest.note, folder);
    check_same_run(note, config_, samples_, total_steps_, folder);
    sherd::load_checkpoint(folder, model_, optimizer_);
    first_step_ = note.step + 1;
    outcome_.steps_done = note.step;
    outcome_.checkpoint = folder;
    say("resumed from " + folder + ", step " + std::to_string(note.step) + " of " +
        std::to_string(total_steps_) +
        (note.step >= total_steps_ ? ": nothing is left to do" : ""));
  }
  prepare_output(config_, world_);  // not before all input has been found sound
  if (world_.rank() == 0) {
    log_ = std::make_unique<track::JsonlLog>(log_path(config_).string(), outcome_.steps_done);
  }
}

void Run::step(std::int64_t number) {
  const Clock::time_point start = Clock::now();
  const double lr = learning_rate(config_.optim, number, total_steps_);
  optimizer_.set_lr(lr);
  const StepPlan plan{number, config_.optim.clip_grad_norm, hooks_.stop_requested()};
  const std::vector<data::Batch> batches = loader_->step(number - 1);
  const double data_wait_seconds = seconds_since(start);
  const StepOutcome outcome = train_step(model_, optimizer_, batches, plan);
  if (outcome.stop_requested) {
    outcome_.stopped = true;
    return;
  }
  outcome_.steps_done = number;
  record(number, outcome, lr, seconds_since(start), data_wait_seconds);
}

void Run::record(std::int64_t number, const StepOutcome& outcome, double lr, double seconds,
                 double data_wait_seconds) {
  double largest[] = {static_cast<double>(peak_resident_bytes()), data_wait_seconds};
  world_.all_reduce(largest, sherd::ReduceOp::Max);
  if (!log_) {
    return;
  }
  const track::StepRecord record{number,
                                 total_steps_,
                                 outcome.loss,
                                 outcome.grad_norm,
                                 lr,
                                 outcome.tokens,
                                 outcome.supervised_tokens,
                                 seconds,
                                 static_cast<std::int64_t>(largest[0]),
                                 largest[1]};
  log_->write(track::step_json(record));
  if (number % config_.log.every_steps == 0 || number == total_steps_) {
    const double each = seconds_since(started_) / static_cast<double>(number - first_step_ + 1);
    say(track::step_line(record, each * static_cast<double>(total_steps_ - number)));
  }
}

void Run::evaluate() {
  if (!heldout_) {
    return;
  }
  outcome_.evaluation =
      eval::evaluate(model_, *heldout_, tokenizer_, {config_.eval.batch, config_.eval.generate});
  say(evaluation_line(*outcome_.evaluation, config_.eval.generate));
}

void Run::save(std::int64_t number) {
  const Clock::time_point start = Clock::now();
  const std::string folder = checkpoints_.folder_of(number).string();
  const RunNote note{number, total_steps_, samples_,
                     std::filesystem::absolute(config_.model.path).string(),
                     config::to_toml(config_)};
  sherd::save_checkpoint(folder, model_, optimizer_, to_text(note));
  if (world_.rank() == 0) {
    checkpoints_.prune(config_.checkpoint.keep, number);
  }
  outcome_.checkpoint = folder;
  char seconds[32];
  std::snprintf(seconds, sizeof seconds, "%.2f s", seconds_since(start));
  say("checkpoint " + folder + " (" + seconds + ")");
}

RunOutcome Run::train() {
  started_ = Clock::now();
  const auto due = [](std::int64_t number, std::int64_t every) {
    return every > 0 && number % every == 0;
  };
  for (std::int64_t number = first_step_; number <= total_steps_; ++number) {
    step(number);
    if (outcome_.stopped) {
      if (outcome_.checkpoint != checkpoints_.folder_of(outcome_.steps_done)) {
        save(outcome_.steps_done);
      }
      return outcome_;
    }
    const bool last = number == total_steps_;
    if (due(number, config_.eval.every_steps) || (last && config_.eval.at_end)) {
      evaluate();
    }
    if (due(number, config_.checkpoint.every_steps) || (last && config_.checkpoint.at_end)) {
      save(number);
    }
  }
  return outcome_;
}

}  // namespace

RunOutcome run(const config::RunConfig& config, sherd::World world, const RunHooks& hooks) {
  data::BatchShape{config.train.global_batch, config.train.micro_batch, world.size()}.validate();
  return Run(config, std::move(world), hooks).train();
}

}  // namespace llm::train
