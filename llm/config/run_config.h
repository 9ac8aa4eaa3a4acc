#pragma once
// The configuration of a run: one struct for each section of the TOML file. schema.cpp gives each
// key its doc, unit and range once; docs/guide/configuration.md is generated from there.

#include <array>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "llm/config/measures.h"

namespace llm::config {

/// Where the model's first values come from.
enum class Init { Weights, Random };
/// In what the frozen weights of linear maps are held. Q8_0: blocks of 8 bits (ops/q8_0.h).
enum class Quantize { None, Q8_0 };
/// How a data file is written.
/// Auto: by the file's name and first character; the choice is written into the run's
/// configuration.
enum class DataFormat {
  Auto,
  Squad,
  Jsonl,
  Json,
  Parquet,
  Csv,
  Chat,
  Alpaca,
  Sharegpt,
  PromptCompletion,
  Text,
  Preference
};
/// The lesson of the data. Dpo: pairs tell which of two answers is better.
enum class Objective { Supervised, Dpo };
/// The loss of a pair (`llm::model::DpoLoss`).
enum class PreferenceLoss { Sigmoid, Ipo, Hinge, Robust };
/// What a sample that cannot be used leads to.
enum class OnBadSample { Error, Skip };
/// Which turns of a conversation are learned. Template: what its chat template marks.
enum class Supervise { All, Last, Template };
/// What a chat template leads to that writes an answer differently after a generation prompt.
enum class OnTemplateMismatch { Error, AsRendered };
/// What special tokens in messages lead to.
enum class SpecialTokensInText { Error, AsText };
/// What a loss or gradient norm that is not finite leads to.
enum class OnNonFinite { Stop, Skip };
/// Which samples a limit leaves.
enum class LimitOrder { Random, File };
/// How samples share rows.
enum class Packing { None, FirstFit };
/// Where a run computes.
enum class DeviceKind { Auto, Cpu, Cuda };

enum class SyncDebug { Default, Warn, Error };
/// Which kernel computes attention on GPUs (`sherd::ops::AttentionKernel`).
enum class AttentionKernel { Auto, Cudnn, Flash, Plain };
/// What updates the parameters.
enum class OptimKind { AdamW };
/// Shape of the learning rate after the warm-up.
enum class Schedule { Linear, Cosine, Constant };
/// What is sharded between forward and backward (`sherd::Strategy`).
enum class Strategy {
  FullShard,
  ShardGradOp,
  ShardOptimizer,
  NoShard,
  HybridShard,
  HybridShardGradOp
};
/// Dtype of the parameters that are gathered and computed with. Auto: the trainer chooses, and
/// writes its choice into the run's configuration.
enum class ParamDtype { Auto, Float32, BFloat16, Float16 };
/// How master weights lie where bf16 travels (`sherd::Master`).
enum class MasterFormat { Float32, Split, BFloat16 };
/// Dtype of AdamW's moments.
enum class MomentsDtype { Float32, BFloat16 };
/// Dtype in which gradients are summed over ranks.
enum class ReduceDtype { Float32, BFloat16 };
/// How GPUs sum gradients (`sherd::ReduceScatter`).
enum class ReduceScatter { RankOrder, Native };
/// Whether the loss is scaled, so that small gradients do not vanish. Auto: under float16.
enum class Scaler { Auto, None };
/// The kind of parameters that are trained in place of the model's own.
enum class AdapterKind { None, Lora };
/// What a log is written as.
enum class SinkKind { Jsonl, TensorBoard, Wandb, Mlflow };
/// What the best evaluation is told by. Auto: F1 where answers are written, else the loss.
enum class BestBy { Auto, Loss, Em, F1 };
/// Which checkpoint a run leaves as a Hugging Face folder.
enum class ExportOf { None, End, Best };

struct ModelSection {
  std::string path;
  Init init = Init::Weights;
  std::vector<std::string> ignore_fields = {};  ///< of config.json
  std::vector<std::string> trainable = {};      ///< patterns of parameters' names; empty: all
  Quantize quantize = Quantize::None;
  bool operator==(const ModelSection&) const = default;
};

/// Modules of a model, chosen by name or by a pattern.
struct ModuleChoice {
  std::vector<std::string> names = {};  ///< each is a module's name, or its last parts
  /// In place of names: a regular expression for whole names; kAllLinear: every linear map but the
  /// head.
  std::string pattern = {};
  [[nodiscard]] bool empty() const { return names.empty() && pattern.empty(); }
  bool operator==(const ModuleChoice&) const = default;
};
inline constexpr const char* kAllLinear = "all-linear";

/// An adapter, by the rules of PEFT's LoraConfig.
struct AdapterSection {
  AdapterKind kind = AdapterKind::None;
  std::string path = {};  ///< of a PEFT folder to start from; empty: a fresh adapter
  std::int64_t rank = 8;
  double alpha = 16;
  double dropout = 0;
  ModuleChoice targets = {.pattern = kAllLinear};
  ModuleChoice exclude = {};
  bool rank_stabilized = false;                   ///< scale alpha ÷ √rank, not alpha ÷ rank
  std::vector<std::string> rank_pattern = {};     ///< PATTERN=RANK
  std::vector<std::string> alpha_pattern = {};    ///< PATTERN=ALPHA
  std::vector<std::int64_t> layers = {};          ///< empty: all
  std::vector<std::string> layers_pattern = {};   ///< what stands before a layer's number
  std::vector<std::string> modules_to_save = {};  ///< that are trained whole
  bool operator==(const AdapterSection&) const = default;
};

/// An entry of rank_pattern or alpha_pattern.
struct PatternNumber {
  std::string pattern = {};
  double number = 0;
};
/// Reads PATTERN=NUMBER, cut at the last "=". An empty pattern or a number of 0: it is none.
[[nodiscard]] PatternNumber pattern_number(const std::string& entry);

/// The names that a data file has for what is read of it.
struct DataColumns {
  std::string prompt = "prompt";
  std::string completion = "completion";
  std::string messages = "messages";  ///< of DataFormat::Chat
  std::string text = "text";          ///< of DataFormat::Text
  std::string chosen = "chosen";      ///< of DataFormat::Preference
  std::string rejected = "rejected";  ///< the same
  bool operator==(const DataColumns&) const = default;
};

/// A file to train on or to evaluate.
struct DataSet {
  std::string path;
  DataFormat format = DataFormat::Auto;
  std::optional<std::int64_t> limit = std::nullopt;  ///< of samples; none: all
  LimitOrder limit_order = LimitOrder::Random;
  double weight = 1;  ///< to train on: how often a sample is seen in an epoch
  DataColumns columns = {};
  bool held_out = false;  ///< to evaluate: only what DataSection::held_out keeps from training
  bool operator==(const DataSet&) const = default;
};

struct DataSection {
  std::optional<std::int64_t> max_length;  ///< none: the model's context
  std::int64_t max_answer_tokens = 32;
  std::string cache = "auto";
  MemorySize prepare_memory{std::int64_t{1} << 30};
  Packing packing = Packing::None;
  std::vector<DataSet> train;
  std::vector<DataSet> eval;
  std::string chat_template = "model";
  std::vector<std::string> template_arguments = {};  ///< NAME=VALUE
  std::string date = "2026-01-01";                   ///< that chat templates print
  Supervise supervise = Supervise::All;
  OnTemplateMismatch on_template_mismatch = OnTemplateMismatch::Error;
  SpecialTokensInText special_tokens_in_text = SpecialTokensInText::Error;
  std::string separator = "auto";
  OnBadSample on_bad_sample = OnBadSample::Error;
  std::int64_t max_bad_samples = 100;
  double held_out = 0;  ///< share of the training samples that are kept from training
  bool operator==(const DataSection&) const = default;
};

struct TrainSection {
  std::string output;
  Objective objective = Objective::Supervised;
  std::int64_t epochs = 1;
  std::optional<std::int64_t> max_steps;  ///< none: from epochs
  std::int64_t global_batch = 8;
  std::optional<std::int64_t> micro_batch = 1;  ///< none: the fastest that fits
  std::int64_t seed = 0;
  OnNonFinite on_non_finite = OnNonFinite::Stop;
  std::int64_t max_skipped = 10;  ///< of a run, under OnNonFinite::Skip
  bool deterministic = false;
  bool operator==(const TrainSection&) const = default;
};

/// Of Objective::Dpo.
struct PreferenceSection {
  PreferenceLoss loss = PreferenceLoss::Sigmoid;
  double beta = 0.1;
  double label_smoothing = 0;
  bool operator==(const PreferenceSection&) const = default;
};

struct DeviceSection {
  DeviceKind kind = DeviceKind::Auto;
  std::optional<int> threads;  ///< none: what OMP_NUM_THREADS says
  SyncDebug sync_debug_mode = SyncDebug::Default;
  bool cuda_graphs = false;
  AttentionKernel attention = AttentionKernel::Auto;
  bool operator==(const DeviceSection&) const = default;
};

struct OptimSection {
  OptimKind kind = OptimKind::AdamW;
  double lr = 2e-5;
  std::array<double, 2> betas = {0.9, 0.999};
  double eps = 1e-8;
  double weight_decay = 0.0;
  bool weight_decay_on_norms_and_biases = false;
  std::optional<double> clip_grad_norm = 1.0;  ///< none: no clipping
  bool operator==(const OptimSection&) const = default;
};

struct ScheduleSection {
  Schedule kind = Schedule::Linear;
  Warmup warmup;
  double min_lr_ratio = 0.0;
  bool operator==(const ScheduleSection&) const = default;
};

struct ParallelSection {
  Strategy strategy = Strategy::FullShard;
  std::optional<int> shard_size;                  ///< none: the ranks of a host
  std::optional<int> reshard_after_forward_size;  ///< none: as the strategy says
  int prefetch_depth = 1;
  std::optional<std::chrono::milliseconds> timeout;  ///< none: what the launcher says, else 10 min
  ReduceScatter reduce_scatter = ReduceScatter::RankOrder;
  bool operator==(const ParallelSection&) const = default;
};

struct PrecisionSection {
  ParamDtype param_dtype = ParamDtype::Auto;
  ReduceDtype reduce_dtype = ReduceDtype::Float32;
  MomentsDtype moments = MomentsDtype::Float32;
  MasterFormat master = MasterFormat::Float32;
  Scaler scaler = Scaler::Auto;
  bool operator==(const PrecisionSection&) const = default;
};

/// What rests outside of memory while nothing computes with it.
struct OffloadSection {
  std::string optimizer_folder = {};  ///< on a disk; empty: none
  std::string gradient_folder = {};   ///< the same of sums of gradients
  std::string parameter_folder = {};  ///< the same of parameters, as they travel
  bool optimizer_on_host = false;     ///< in memory of the host, of a GPU's
  bool activations_on_host = false;   ///< the same of what a unit saves for its backward
  bool gradients_on_host = false;     ///< the same of sums of gradients
  bool parameters_on_host = false;    ///< the same of parameters, as they travel
  /// But activations.
  [[nodiscard]] bool any_state_on_host() const {
    return optimizer_on_host || gradients_on_host || parameters_on_host;
  }
  [[nodiscard]] bool any_on_host() const { return any_state_on_host() || activations_on_host; }
  bool operator==(const OffloadSection&) const = default;
};

struct MemorySection {
  bool activation_checkpointing = false;
  std::optional<std::int64_t> loss_chunk_tokens = std::nullopt;  ///< none: by loss_chunk_bytes
  std::optional<std::int64_t> loss_chunk_bytes = std::nullopt;   ///< none: by the device
  OffloadSection offload = {};
  bool operator==(const MemorySection&) const = default;
};

struct CheckpointSection {
  Every every = Every::time(std::chrono::minutes(10));
  bool at_end = true;
  int keep = 2;
  bool best = false;
  ExportOf export_of = ExportOf::None;
  std::string resume = "auto";
  /// Whether the checkpoint of the best evaluation is kept.
  [[nodiscard]] bool keeps_best() const { return best || export_of == ExportOf::Best; }
  bool operator==(const CheckpointSection&) const = default;
};

struct EvalSection {
  bool at_start = false;
  Every every = Every::epoch();
  bool at_end = true;
  bool generate = false;
  bool predictions = true;
  std::int64_t batch = 8;
  BestBy best_by = BestBy::Auto;
  std::optional<std::int64_t> patience;  ///< in evaluations; none: no early stop
  double min_delta = 0;
  bool operator==(const EvalSection&) const = default;
};

/// Where the log goes.
struct Sink {
  SinkKind kind = SinkKind::Jsonl;
  std::string path = {};  ///< empty: a place of the kind's own, mostly in train.output
  bool sync = false;      ///< of wandb: whether `wandb sync` runs at the end
  bool operator==(const Sink&) const = default;
};

struct LogSection {
  std::int64_t every_steps = 1;
  std::string name = {};     ///< empty: that of train.output's folder
  std::string project = {};  ///< empty: what the tracker's environment says, else "sherd"
  std::vector<std::string> tags = {};
  StepSpan trace_steps = {};
  std::vector<Sink> sink = {Sink{}};  ///< one of a kind; log.jsonl is written without one too
  bool operator==(const LogSection&) const = default;
};

/// Everything that determines a run.
struct RunConfig {
  ModelSection model;
  AdapterSection adapter;
  DataSection data;
  TrainSection train;
  PreferenceSection preference;
  DeviceSection device;
  OptimSection optim;
  ScheduleSection schedule;
  ParallelSection parallel;
  PrecisionSection precision;
  MemorySection memory;
  CheckpointSection checkpoint;
  EvalSection eval;
  LogSection log;
  bool operator==(const RunConfig&) const = default;
};

/// The sink of this kind, or null. Points into `log`.
[[nodiscard]] const Sink* sink_of(const LogSection& log, SinkKind kind);

/// The path that is given to `log.jsonl`'s sink; empty: log.jsonl in train.output.
[[nodiscard]] std::string jsonl_path(const LogSection& log);

/// Called with one line for each value that was read under an old name: "run.toml:3: train.threads
/// is now device.threads".
using Note = std::function<void(const std::string& line)>;

/// Reads the TOML file, if any, then the flags, which win: `--section.key value` or
/// `--section.key=value`. Throws `sherd::Error` (Usage) with all faults of both, one a line, each
/// with file:line or flag: a file that cannot be read or is not TOML, unknown keys with the nearest
/// name, keys of features that do not exist yet, wrong types and ranges, a key given twice, missing
/// keys, and what `validate` finds. Where the run is to be on this machine, `most_threads` is what
/// device.threads may be at most; a plan or a job file is for another.
[[nodiscard]] RunConfig load(const std::optional<std::filesystem::path>& file,
                             std::span<const std::string> flags, const Note& note = {},
                             std::optional<int> most_threads = std::nullopt);

/// An error and the key ("section.key") at which it is best corrected.
struct Fault {
  std::string key;
  std::string text;
};

/// What is missing, and what does not fit together. (Whether the batch divides over the ranks is
/// checked by the trainer, which knows their number.)
[[nodiscard]] std::vector<Fault> validate(const RunConfig& config);

/// Every key of every section as TOML that `load` reads back to an equal configuration.
[[nodiscard]] std::string to_toml(const RunConfig& config);

/// Each key with its value as TOML, in file order, except those that may differ between hosts:
/// paths and threads.
[[nodiscard]] std::vector<std::pair<std::string, std::string>> settings_in_common(
    const RunConfig& config);

/// What `to_toml` printed, in this or an earlier version; a key that it lacks reads as what that
/// version did. Throws std::invalid_argument, with a line for each fault, for other text.
[[nodiscard]] RunConfig from_toml(const std::string& text);

/// Whether a resumed run may have another value of a key.
enum class OnResume {
  Free,     ///< it may: the results do not depend on it
  Numbers,  ///< it may: from then on the run computes other numbers, which is said and logged
  Fixed,    ///< it may not: the key decides which run it is (model, data, order, batch)
};

/// A setting that is not the same.
struct Difference {
  std::string key;
  std::string before;  ///< as TOML; "absent" for an item of a list
  std::string after;
  OnResume on_resume = OnResume::Fixed;  ///< never Free
};

/// The settings that decide the numbers of a run and differ: those that are OnResume::Numbers or
/// Fixed. Paths, logging and the way ranks are used do not decide.
[[nodiscard]] std::vector<Difference> deciding_differences(const RunConfig& before,
                                                           const RunConfig& after);

/// A line for each key that was set to no avail: "optim.weight_decay_on_norms_and_biases = true has
/// no effect: optim.weight_decay is 0".
[[nodiscard]] std::vector<std::string> settings_without_effect(const RunConfig& config, int ranks);

/// The text of docs/guide/configuration.md.
[[nodiscard]] std::string reference_markdown();

/// The flags, one a line, for `--help`.
[[nodiscard]] std::string help_text();

}  // namespace llm::config
