#pragma once
// The configuration of a run: one struct for each section of the TOML file. fields.cpp gives each
// key its doc, unit and range once; docs/guide/configuration.md is generated from there. An empty
// string means "not given".

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace llm::config {

/// Where the model's first values come from.
enum class Init { Weights, Random };
/// Shape of the learning rate after the warm-up.
enum class Schedule { Linear, Cosine, Constant };
/// What is sharded between forward and backward (`sherd::Strategy`).
enum class Strategy { FullShard, ShardGradOp, NoShard, HybridShard, HybridShardGradOp };
/// Dtype of the parameters that are gathered and computed with.
enum class ParamDtype { Float32, BFloat16 };
/// Dtype of AdamW's moments.
enum class MomentsDtype { Float32, BFloat16 };
/// Dtype in which gradients are summed over ranks.
enum class ReduceDtype { Float32 };

struct ModelSection {
  std::string path;
  Init init = Init::Weights;
  bool operator==(const ModelSection&) const = default;
};

struct DataSection {
  std::string train;
  std::string eval;
  std::int64_t max_length = 0;
  std::int64_t max_answer_tokens = 32;
  std::int64_t train_limit = 0;
  std::int64_t eval_limit = 0;
  std::string cache;
  bool operator==(const DataSection&) const = default;
};

struct TrainSection {
  std::string output;
  std::int64_t epochs = 1;
  std::int64_t max_steps = 0;
  std::int64_t global_batch = 8;
  std::int64_t micro_batch = 1;
  std::int64_t seed = 0;
  std::int64_t threads = 0;
  bool operator==(const TrainSection&) const = default;
};

struct OptimSection {
  double lr = 2e-5;
  std::array<double, 2> betas = {0.9, 0.999};
  double eps = 1e-8;
  double weight_decay = 0.0;
  Schedule schedule = Schedule::Linear;
  std::int64_t warmup_steps = 0;
  double min_lr_ratio = 0.0;
  double clip_grad_norm = 1.0;
  bool operator==(const OptimSection&) const = default;
};

struct ParallelSection {
  Strategy strategy = Strategy::FullShard;
  std::int64_t shard_size = 0;
  std::int64_t reshard_after_forward_size = 0;
  std::int64_t prefetch_depth = 1;
  bool operator==(const ParallelSection&) const = default;
};

struct MemorySection {
  bool activation_checkpointing = false;
  MomentsDtype moments_dtype = MomentsDtype::Float32;
  std::int64_t loss_chunk_tokens = 512;
  bool operator==(const MemorySection&) const = default;
};

struct PrecisionSection {
  ParamDtype param_dtype = ParamDtype::Float32;
  ReduceDtype reduce_dtype = ReduceDtype::Float32;
  bool operator==(const PrecisionSection&) const = default;
};

struct CheckpointSection {
  std::int64_t every_steps = 0;
  std::int64_t keep = 2;
  std::string resume = "auto";
  bool at_end = true;
  bool operator==(const CheckpointSection&) const = default;
};

struct LogSection {
  std::int64_t every_steps = 1;
  std::string jsonl;
  bool operator==(const LogSection&) const = default;
};

struct EvalSection {
  std::int64_t every_steps = 0;
  bool at_end = true;
  bool generate = false;
  std::int64_t batch = 8;
  bool operator==(const EvalSection&) const = default;
};

/// All that decides a run.
struct RunConfig {
  ModelSection model;
  DataSection data;
  TrainSection train;
  OptimSection optim;
  ParallelSection parallel;
  MemorySection memory;
  PrecisionSection precision;
  CheckpointSection checkpoint;
  LogSection log;
  EvalSection eval;
  bool operator==(const RunConfig&) const = default;
};

/// Reads the TOML file, if any, then the flags, which win: `--section.key value` or
/// `--section.key=value`. Throws `sherd::Error` (Usage) with all faults of both, one a line, each
/// with file:line or flag: a file that cannot be read or is no TOML, unknown keys with the nearest
/// name, wrong types and ranges, a flag given twice, missing keys, and what `validate` finds.
[[nodiscard]] RunConfig load(const std::optional<std::filesystem::path>& file,
                             std::span<const std::string> flags);

/// A fault and the key ("section.key") it is best mended at.
struct Fault {
  std::string key;
  std::string text;
};

/// What is missing, and what does not fit together. (That the batch divides over the ranks is for
/// the trainer to check, which knows their number.)
[[nodiscard]] std::vector<Fault> validate(const RunConfig& config);

/// Every key of every section as TOML that `load` reads back to an equal configuration.
[[nodiscard]] std::string to_toml(const RunConfig& config);

/// Every key ("section.key") with its value as TOML, in the order of the file.
[[nodiscard]] std::vector<std::pair<std::string, std::string>> key_values(const RunConfig& config);

/// The text of docs/guide/configuration.md.
[[nodiscard]] std::string reference_markdown();

/// The flags, one a line, for `--help`.
[[nodiscard]] std::string help_text();

}  // namespace llm::config
