// Every key, once: its section, kind, bounds, unit, meaning, whether it may change on resume, and
// the names it had. A feature to come is one NotYet entry, or a planned word of a choice.
// The keys of data are in schema_data.cpp, those of adapters in schema_adapter.cpp.

#include <utility>

#include "llm/config/fields.h"
#include "llm/config/schema_parts.h"
#include "llm/config/words.h"

namespace llm::config {
namespace {

constexpr double kMany = 1e6;  ///< keeps products of counts far from overflow

/// Returns the new spelling of a count of steps; 0 was "never".
std::string every_text(const std::string& old_value) {
  return old_value == "0" ? "never" : old_value + " steps";
}

Table fields(ModelSection& model) {
  return {{
      {.name = "path",
       .slot = string(model.path),
       .doc = "Hugging Face model folder, or a model on a hub, ORG/NAME, from the hub cache, "
              "downloaded if missing",
       .required = true,
       .of_host = true},
      {.name = "init",
       .slot = choice<Init>(model.init, {{"weights", Init::Weights}, {"random", Init::Random}}),
       .doc = "weights: start from the folder's weights; random: draw weights by train.seed; the "
              "folder then needs only config.json and tokenizer.json"},
      {.name = "ignore_fields",
       .slot = strings(model.ignore_fields),
       .doc = "fields of config.json to ignore: fields unknown to this version that do not change "
              "what the model computes",
       .on_resume = OnResume::Fixed},
      {.name = "quantize",
       .slot =
           choice<Quantize>(model.quantize, {{"none", Quantize::None}, {"q8_0", Quantize::Q8_0}},
                            {"q4_0", "q4_k_m", "nf4", "int4"}),
       .doc = "how the frozen weights of the layers' linear maps are held; q8_0: in blocks of 32 "
              "numbers with 8 bits each and a scale (GGUF's Q8_0), about half of bfloat16's "
              "memory. Each rank quantizes its own shard as it reads the weights. For training "
              "an adapter or some parameters",
       .on_resume = OnResume::Fixed},
      planned_field("overrides", "changes to config.json's fields"),
      {.name = "trainable",
       .slot = strings(model.trainable),
       .doc = "regular expressions for whole names of parameters, such as model.layers.29.*: only "
              "these are trained, and checkpoints hold them alone "
              "([partial training](checkpoints.md#a-part-of-the-model)); empty: all",
       .on_resume = OnResume::Fixed},
  }};
}

Table fields(TrainSection& train, const DeviceSection& device) {
  return {{
      {.name = "output",
       .slot = string(train.output),
       .doc = "the run's folder, with checkpoints and log; created if missing",
       .required = true,
       .default_words = "runs/ and the name of the file; required without one"},
      {.name = "objective",
       .slot = choice<Objective>(train.objective,
                                 {{"supervised", Objective::Supervised}, {"dpo", Objective::Dpo}},
                                 {"kto", "orpo", "simpo", "ppo", "grpo"}),
       .doc = "supervised: learn the answers of data.train; dpo: learn from preference pairs "
              "([preferences](preferences.md)), with optim.lr = 1e-6, or 1e-5 for an adapter",
       .on_resume = OnResume::Fixed},
      {.name = "epochs",
       .slot = integer(train.epochs, between(1, kMany)),
       .doc = "passes over data.train; raising it continues a finished run",
       .on_resume = OnResume::Numbers,
       .idle = no_effect(train.max_steps.has_value(), "train.max_steps is set")},
      {.name = "max_steps",
       .slot = integer_or("epochs", train.max_steps, at_least(1)),
       .doc = "length of the run and of its schedule; epochs: set by train.epochs",
       .unit = "steps",
       .on_resume = OnResume::Numbers,
       .old_value = OldValue{"0", "epochs"}},
      {.name = "global_batch",
       .slot = integer(train.global_batch, between(1, kMany)),
       .doc = "samples per optimizer step, all ranks together",
       .unit = "samples",
       .on_resume = OnResume::Fixed},
      {.name = "micro_batch",
       .slot = integer_or("auto", train.micro_batch, between(1, kMany)),
       .doc = "samples per rank at a time; auto: the fastest that fits, by sherd plan",
       .unit = "samples"},
      {.name = "seed",
       .slot = integer(train.seed, at_least(0)),
       .doc = "sets, with the epoch, the order of samples, and random weights",
       .on_resume = OnResume::Fixed},
      {.name = "on_non_finite",
       .slot = choice<OnNonFinite>(train.on_non_finite,
                                   {{"stop", OnNonFinite::Stop}, {"skip", OnNonFinite::Skip}}),
       .doc = "what a non-finite loss or gradient norm does; stop: the run ends with exit code 79; "
              "skip: all ranks skip the update of that step",
       .on_resume = OnResume::Numbers},
      {.name = "max_skipped",
       .slot = integer(train.max_skipped, between(1, kMany)),
       .doc = "most skipped steps per run, resumes included; one more ends it with exit code 79",
       .unit = "steps",
       .idle = no_effect(train.on_non_finite == OnNonFinite::Stop, "train.on_non_finite is stop")},
      {.name = "deterministic",
       .slot = flag(train.deterministic),
       .doc = "use GPU kernels that LibTorch calls deterministic; may be slower; sets "
              "CUBLAS_WORKSPACE_CONFIG. CPU runs are always bit-reproducible",
       .idle =
           no_effect(device.kind == DeviceKind::Cpu && train.deterministic, "device.kind is cpu")},
  }};
}

Table fields(PreferenceSection& preference, const TrainSection& train) {
  const std::string idle =
      no_effect(train.objective != Objective::Dpo, "train.objective is not dpo");
  const bool smooths =
      preference.loss == PreferenceLoss::Sigmoid || preference.loss == PreferenceLoss::Robust;
  return {{
      {.name = "loss",
       .slot = choice<PreferenceLoss>(preference.loss, {{"sigmoid", PreferenceLoss::Sigmoid},
                                                        {"ipo", PreferenceLoss::Ipo},
                                                        {"hinge", PreferenceLoss::Hinge},
                                                        {"robust", PreferenceLoss::Robust}}),
       .doc = "loss of a pair; sigmoid: DPO, with label_smoothing cDPO; ipo: squared distance to "
              "1/(2 beta), of means over tokens; hinge: SLiC; robust: DPO corrected for swapped "
              "pairs",
       .on_resume = OnResume::Numbers,
       .idle = idle},
      {.name = "beta",
       .slot = number(preference.beta, above(0)),
       .doc = "how strongly the model is held to the reference model: larger stays closer",
       .on_resume = OnResume::Numbers,
       .idle = idle},
      {.name = "label_smoothing",
       .slot = number(preference.label_smoothing, {.least = 0, .most = 0.5, .below_most = true}),
       .doc = "expected share of pairs whose answers are swapped",
       .on_resume = OnResume::Numbers,
       .idle = idle.empty() && !smooths ? "preference.loss is neither sigmoid nor robust" : idle},
  }};
}

Table fields(DeviceSection& device) {
  return {{
      {.name = "kind",
       .slot = choice<DeviceKind>(
           device.kind,
           {{"auto", DeviceKind::Auto}, {"cpu", DeviceKind::Cpu}, {"cuda", DeviceKind::Cuda}}),
       .doc = "device of each rank; cuda: its own NVIDIA GPU; auto: GPUs if any can be used, else "
              "the CPU"},
      {.name = "threads",
       .slot = integer_or("auto", device.threads, between(1, 1024)),
       .doc = "CPU threads per rank; auto: OMP_NUM_THREADS",
       .of_host = true,
       .old_names = {{.key = "train.threads"}},
       .old_value = OldValue{"0", "auto"}},
      {.name = "sync_debug_mode",
       .slot = choice<SyncDebug>(device.sync_debug_mode, {{"default", SyncDebug::Default},
                                                          {"warn", SyncDebug::Warn},
                                                          {"error", SyncDebug::Error}}),
       .doc = "for Sherd's developers: report each operator that makes the host wait for a GPU, or "
              "end the run",
       .of_host = true},
      {.name = "cuda_graphs",
       .slot = flag(device.cuda_graphs),
       .doc =
           "replay repeated micro-batches as CUDA graphs: for small models and short texts of one "
           "length. Doubles the memory of activations; of memory.offload allows only `optimizer`",
       .of_host = true},
      {.name = "attention",
       .slot = choice<AttentionKernel>(device.attention, attention_words()),
       .doc = "attention kernel on GPUs; cudnn: 16-bit documents of one length; flash: LibTorch's; "
              "plain: matrix products; auto: the fastest that supports the model. An unsupported "
              "choice falls back to the next, with a message",
       .idle =
           no_effect(device.kind == DeviceKind::Cpu && device.attention != AttentionKernel::Auto,
                     "device.kind is cpu")},
  }};
}

Table fields(OptimSection& optim) {
  return {{
      {.name = "kind",
       .slot = choice<OptimKind>(optim.kind, {{"adamw", OptimKind::AdamW}},
                                 {"sgd", "adafactor", "lion", "muon"}),
       .doc = "the optimizer",
       .on_resume = OnResume::Fixed},
      {.name = "lr",
       .slot = number(optim.lr, above(0)),
       .doc = "peak learning rate",
       .on_resume = OnResume::Numbers},
      {.name = "betas",
       .slot = two_numbers(optim.betas, {.least = 0, .most = 1, .below_most = true}),
       .doc = "decay rates of the two moments",
       .on_resume = OnResume::Numbers},
      {.name = "eps",
       .slot = number(optim.eps, above(0)),
       .doc = "epsilon",
       .on_resume = OnResume::Numbers},
      {.name = "weight_decay",
       .slot = number(optim.weight_decay, at_least(0)),
       .doc = "decoupled weight decay",
       .on_resume = OnResume::Numbers},
      {.name = "weight_decay_on_norms_and_biases",
       .slot = flag(optim.weight_decay_on_norms_and_biases),
       .doc = "also decay those parameters; false: only matrices and embeddings",
       .on_resume = OnResume::Numbers,
       .idle = no_effect(optim.weight_decay == 0, "optim.weight_decay is 0"),
       .before = "true"},
      {.name = "clip_grad_norm",
       .slot = number_or("none", optim.clip_grad_norm, above(0)),
       .doc = "largest global gradient norm; larger gradients are scaled down; none: no clipping",
       .on_resume = OnResume::Numbers,
       .old_value = OldValue{"0", "none"}},
      planned_field("group", "groups of parameters with their own options"),
  }};
}

Table fields(ScheduleSection& schedule) {
  return {{
      {.name = "kind",
       .slot = choice<Schedule>(schedule.kind, {{"linear", Schedule::Linear},
                                                {"cosine", Schedule::Cosine},
                                                {"constant", Schedule::Constant}}),
       .doc = "shape of the learning rate after the warm-up",
       .on_resume = OnResume::Numbers,
       .old_names = {{.key = "optim.schedule"}}},
      {.name = "warmup",
       .slot = warmup(schedule.warmup),
       .doc = "length of the rise of the learning rate from 0 to optim.lr",
       .on_resume = OnResume::Numbers,
       .old_names = {{.key = "optim.warmup_steps",
                      .value = [](const std::string& steps) { return steps + " steps"; }}}},
      {.name = "min_lr_ratio",
       .slot = number(schedule.min_lr_ratio, between(0, 1)),
       .doc = "final learning rate of a linear or cosine schedule, as a share of optim.lr",
       .on_resume = OnResume::Numbers,
       .idle = no_effect(schedule.kind == Schedule::Constant, "schedule.kind is constant"),
       .old_names = {{.key = "optim.min_lr_ratio"}}},
  }};
}

Table fields(ParallelSection& parallel) {
  using enum Strategy;
  const bool hybrid = parallel.strategy == HybridShard || parallel.strategy == HybridShardGradOp;
  const bool reshards = parallel.strategy == FullShard || parallel.strategy == HybridShard;
  return {{
      {.name = "strategy",
       .slot = choice<Strategy>(parallel.strategy, strategy_words()),
       .doc =
           "full_shard reshards parameters after forward; shard_grad_op after backward; "
           "shard_optimizer after the last micro-batch of a step, which alone reduces gradients; "
           "no_shard replicates the model; hybrid ones shard within groups of "
           "parallel.shard_size ranks ([strategies](strategies.md))"},
      {.name = "shard_size",
       .slot = integer_or("host", parallel.shard_size, between(1, kMany)),
       .doc = "ranks that share one copy of the model under a hybrid strategy; host: the ranks of "
              "one host",
       .unit = "ranks",
       .idle = no_effect(!hybrid, "parallel.strategy is not a hybrid one"),
       .old_value = OldValue{"0", "host"}},
      {.name = "reshard_after_forward_size",
       .slot = integer_or("strategy", parallel.reshard_after_forward_size, between(1, kMany)),
       .doc = "keep 1/n of the gathered parameters between forward and backward, so that the "
              "second all-gather stays within n ranks",
       .unit = "ranks",
       .idle = no_effect(!reshards, "parallel.strategy keeps gathered parameters until backward"),
       .old_value = OldValue{"0", "strategy"}},
      {.name = "prefetch_depth",
       .slot = integer(parallel.prefetch_depth, between(0, 8)),
       .doc = "units to gather ahead of the one that computes",
       .unit = "units",
       .idle = no_effect(parallel.strategy == NoShard, "parallel.strategy gathers nothing")},
      {.name = "timeout",
       .slot = duration_or("auto", parallel.timeout, std::chrono::seconds(1)),
       .doc = "how long ranks wait for each other at startup and in each exchange; auto: `sherd "
              "launch --timeout` or SHERD_TIMEOUT, else 10 min"},
      {.name = "reduce_scatter",
       .slot = choice<ReduceScatter>(
           parallel.reduce_scatter,
           {{"rank_order", ReduceScatter::RankOrder}, {"native", ReduceScatter::Native}}),
       .doc = "how GPUs sum gradients; rank_order: the same bits on any number of GPUs; native: "
              "NCCL's reduce-scatter in precision.reduce_dtype",
       .on_resume = OnResume::Numbers},
      planned_field("transport", "a choice of the transport"),
  }};
}

Table fields(PrecisionSection& precision) {
  return {{
      {.name = "param_dtype",
       .slot = choice<ParamDtype>(precision.param_dtype, param_dtype_words(), {"fp8", "float8"}),
       .doc = "dtype of forward and backward; auto: bfloat16 if it is fast on every rank's device, "
              "else float32",
       .on_resume = OnResume::Numbers},
      {.name = "reduce_dtype",
       .slot = choice<ReduceDtype>(precision.reduce_dtype, {{"float32", ReduceDtype::Float32},
                                                            {"bfloat16", ReduceDtype::BFloat16}}),
       .doc = "dtype of gradient sums; bfloat16, under bfloat16, saves two bytes per parameter and "
              "rounds the sum of each micro-batch",
       .on_resume = OnResume::Numbers,
       .idle = no_effect(precision.param_dtype == ParamDtype::Float32 ||
                             precision.param_dtype == ParamDtype::Float16,
                         "precision.param_dtype is not bfloat16")},
      {.name = "master",
       .slot = choice<MasterFormat>(precision.master, master_words()),
       .doc = "master weights under bfloat16; split: 16 more bits to the weights, 2 bytes per "
              "parameter less, same results; bfloat16: no masters, updates round stochastically",
       .on_resume = OnResume::Numbers,
       .idle = no_effect(precision.param_dtype == ParamDtype::Float32,
                         "precision.param_dtype is float32: weights are their own masters")},
      {.name = "moments",
       .slot = choice<MomentsDtype>(
           precision.moments,
           {{"float32", MomentsDtype::Float32}, {"bfloat16", MomentsDtype::BFloat16}},
           {"int8", "fp8"}),
       .doc = "dtype of AdamW's moments; bfloat16 halves their memory and makes updates noisier",
       .on_resume = OnResume::Numbers,
       .old_names = {{.key = "precision.moments_dtype"}, {.key = "memory.moments_dtype"}}},
      {.name = "scaler",
       .slot = choice<Scaler>(precision.scaler, {{"auto", Scaler::Auto}, {"none", Scaler::None}}),
       .doc = "auto: under float16 multiply the loss by an adaptive scale; none: no scale",
       .on_resume = OnResume::Numbers,
       .idle = no_effect(precision.param_dtype != ParamDtype::Float16,
                         "precision.param_dtype is not float16")},
  }};
}

Table fields(OffloadSection& offload) {
  return {{
      {.name = "optimizer",
       .slot = host_or_disk_folder(offload.optimizer_on_host, offload.optimizer_folder),
       .doc =
           "AdamW's moments and, under bfloat16, the masters (8 to 12 bytes per parameter); host: "
           "pinned memory of a GPU's host; disk: an unnamed file ([more](memory.md#on-a-disk))",
       .of_host = true},
      {.name = "gradients",
       .slot = host_or_disk_folder(offload.gradients_on_host, offload.gradient_folder),
       .doc = "gradient sums, 4 bytes per parameter (2 if precision.reduce_dtype is bfloat16)",
       .of_host = true},
      {.name = "parameters",
       .slot = host_or_disk_folder(offload.parameters_on_host, offload.parameter_folder),
       .doc = "parameter shards, 2 bytes per parameter under bfloat16, else 4; CPU ranks then "
              "exchange over process groups instead of shared memory",
       .of_host = true},
      {.name = "activations",
       .slot = host_or_none(offload.activations_on_host),
       .doc = "on GPUs, what blocks keep for backward (with activation_checkpointing only their "
              "inputs)"},
  }};
}

Table fields(MemorySection& memory) {
  return {{
      {.name = "activation_checkpointing",
       .slot = flag(memory.activation_checkpointing),
       .doc = "keep only the inputs of each block and recompute the rest in backward"},
      {.name = "loss_chunk_tokens",
       .slot = integer_or("auto", memory.loss_chunk_tokens, at_least(1)),
       .doc = "rows of logits (one per supervised token) per chunk of the loss; auto: as many as "
              "fit in loss_chunk_bytes",
       .unit = "tokens"},
      {.name = "loss_chunk_bytes",
       .slot = integer_or("auto", memory.loss_chunk_bytes, at_least(1)),
       .doc = "bytes for the logits of one chunk of the loss, at most 8192 rows; auto: 1/32 of a "
              "GPU's memory, on a CPU 512 rows",
       .unit = "bytes",
       .idle =
           no_effect(memory.loss_chunk_tokens.has_value(), "memory.loss_chunk_tokens is given")},
      {.name = "offload",
       .slot = fields(memory.offload),
       .doc = "What is stored elsewhere while it is not in use: \"none\", \"disk:FOLDER\", or for "
              "GPUs \"host\"."},
  }};
}

Table fields(CheckpointSection& checkpoint, const std::string& not_evaluated) {
  return {{
      {.name = "every",
       .slot = every(checkpoint.every),
       .doc = "how often to save; a stop on request also saves",
       .old_names = {{.key = "checkpoint.every_steps", .value = every_text}}},
      {.name = "at_end", .slot = flag(checkpoint.at_end), .doc = "save after the last step"},
      {.name = "keep",
       .slot = integer(checkpoint.keep, between(1, kMany)),
       .doc = "checkpoints to keep; older ones are removed after a save",
       .unit = "checkpoints",
       .idle =
           no_effect(checkpoint.every == Every{} && !checkpoint.best, "checkpoint.every is never")},
      {.name = "best",
       .slot = flag(checkpoint.best),
       .doc = "save after each evaluation that is the best so far (eval.best_by), and keep that "
              "checkpoint in addition to checkpoint.keep",
       .idle = not_evaluated},
      {.name = "export",
       .slot = choice<ExportOf>(
           checkpoint.export_of,
           {{"none", ExportOf::None}, {"end", ExportOf::End}, {"best", ExportOf::Best}}),
       .doc = "at the end of the run, write the last or the best checkpoint as a Hugging Face "
              "folder, train.output/export; best turns checkpoint.best on"},
      {.name = "resume",
       .slot = string(checkpoint.resume),
       .doc = "auto: the newest checkpoint in train.output; never: the model, refused if there is "
              "a checkpoint; overwrite: the model, after deleting all checkpoints, at the first "
              "start only; or a checkpoint's or run's folder"},
      planned_field("from", "starting a new run from a checkpoint's weights"),
  }};
}

/// Why nothing is evaluated but at the start; empty: something is.
std::string not_evaluated(const EvalSection& eval, const DataSection& data) {
  const bool never = eval.every == Every{} && !eval.at_end;
  return data.eval.empty() ? "there is no data.eval" : no_effect(never, "eval.every is never");
}

Table fields(EvalSection& eval, const DataSection& data) {
  const std::string no_data = no_effect(data.eval.empty(), "there is no data.eval");
  const std::string not_at_all = eval.at_start ? no_data : not_evaluated(eval, data);
  const std::string not_trained = not_evaluated(eval, data);
  return {{
      {.name = "at_start",
       .slot = flag(eval.at_start),
       .doc = "also evaluate before the first step",
       .idle = no_data},
      {.name = "every",
       .slot = every(eval.every),
       .doc = "how often to evaluate data.eval",
       .idle = no_data,
       .old_names = {{.key = "eval.every_steps", .value = every_text}}},
      {.name = "at_end", .slot = flag(eval.at_end), .doc = "evaluate after the last step"},
      {.name = "generate",
       .slot = flag(eval.generate),
       .doc = "also generate answers for exact match and F1; slower",
       .idle = not_at_all},
      {.name = "predictions",
       .slot = flag(eval.predictions),
       .doc = "write the answers of each evaluation to train.output "
              "([files](evaluation.md#during-a-run))",
       .idle = eval.generate ? not_at_all : "eval.generate is false"},
      {.name = "batch",
       .slot = integer(eval.batch, between(1, kMany)),
       .doc = "samples per rank and forward pass",
       .unit = "samples",
       .idle = not_at_all},
      {.name = "best_by",
       .slot = choice<BestBy>(eval.best_by, {{"auto", BestBy::Auto},
                                             {"loss", BestBy::Loss},
                                             {"em", BestBy::Em},
                                             {"f1", BestBy::F1}}),
       .doc = "measure of the best evaluation, on the first data.eval: lowest loss, highest exact "
              "match or F1; auto: f1 with eval.generate, else loss",
       .idle = not_trained},
      {.name = "patience",
       .slot = integer_or("none", eval.patience, between(1, kMany)),
       .doc = "end the run after this many evaluations in a row without improvement; none: never",
       .unit = "evaluations"},
      {.name = "min_delta",
       .slot = number(eval.min_delta, at_least(0)),
       .doc = "an improvement counts for eval.patience if it is larger than this, in the unit of "
              "eval.best_by (percent for em and f1)",
       .idle = no_effect(!eval.patience, "eval.patience is none")},
      planned_field("metrics", "a choice of metrics"),
  }};
}

/// A place of the log, the `i`th of its list.
Table fields(Sink& sink, std::size_t i) {
  Field path{.name = "path",
             .slot = string(sink.path),
             .doc =
                 "jsonl: the log file; tensorboard: the folder for event files; wandb: the parent "
                 "of its folder wandb",
             .default_words =
                 "log.jsonl, tensorboard or wandb in train.output; for wandb WANDB_DIR if set",
             .idle = no_effect(sink.kind == SinkKind::Mlflow,
                               "MLFLOW_TRACKING_URI is the server's address"),
             .of_host = true};
  if (i == 0) {
    path.old_names = {{.key = "log.jsonl"}};
  }
  return {{{.name = "kind",
            .slot = choice<SinkKind>(sink.kind,
                                     {{"jsonl", SinkKind::Jsonl},
                                      {"tensorboard", SinkKind::TensorBoard},
                                      {"wandb", SinkKind::Wandb},
                                      {"mlflow", SinkKind::Mlflow}},
                                     {"csv", "console"}),
            .doc = "jsonl: the run's log, written also without a sink; the others: "
                   "[trackers](trackers.md)"},
           std::move(path),
           {.name = "sync",
            .slot = flag(sink.sync),
            .doc = "run `wandb sync` at the end of the run; false: print the command",
            .idle = no_effect(sink.kind != SinkKind::Wandb, "the sink's kind is not wandb")}}};
}

Table fields(LogSection& log) {
  return {{
      {.name = "every_steps",
       .slot = integer(log.every_steps, at_least(1)),
       .doc = "steps between printed step lines",
       .unit = "steps"},
      {.name = "name",
       .slot = string(log.name),
       .doc = "name of the run in trackers",
       .default_words = "WANDB_NAME for wandb, else the name of train.output's folder"},
      {.name = "project",
       .slot = string(log.project),
       .doc = "group of the run in trackers: W&B project, MLflow experiment",
       .default_words = "WANDB_PROJECT or MLFLOW_EXPERIMENT_NAME, else sherd"},
      {.name = "tags", .slot = strings(log.tags), .doc = "tags in trackers"},
      {.name = "trace_steps",
       .slot = step_span(log.trace_steps),
       .doc = "steps to record on each rank ([traces](runs.md#traces))"},
      {.name = "sink",
       .slot = list_of(log.sink, [](Sink& sink, std::size_t i) { return fields(sink, i); }),
       .doc =
           "Where each step is logged, at most one sink of each kind ([trackers](trackers.md))."},
  }};
}

}  // namespace

Table schema(RunConfig& config) {
  return {{
      {.name = "model", .slot = fields(config.model), .doc = "The model to train."},
      {.name = "adapter",
       .slot = adapter_fields(config.adapter),
       .doc = "Training an adapter in place of the model ([adapters](adapters.md))."},
      {.name = "data", .slot = data_fields(config.data), .doc = "Training and evaluation data."},
      {.name = "train",
       .slot = fields(config.train, config.device),
       .doc = "Length of the run and size of its batches."},
      {.name = "preference",
       .slot = fields(config.preference, config.train),
       .doc = "The loss of train.objective = \"dpo\"."},
      {.name = "device", .slot = fields(config.device), .doc = "Devices and threads."},
      {.name = "optim", .slot = fields(config.optim), .doc = "AdamW."},
      {.name = "schedule", .slot = fields(config.schedule), .doc = "The learning rate."},
      {.name = "parallel",
       .slot = fields(config.parallel),
       .doc = "How the model is sharded over ranks."},
      {.name = "precision", .slot = fields(config.precision), .doc = "Dtypes."},
      {.name = "memory", .slot = fields(config.memory), .doc = "Settings that save memory."},
      {.name = "checkpoint",
       .slot = fields(config.checkpoint, not_evaluated(config.eval, config.data)),
       .doc = "Saving and resuming."},
      {.name = "eval",
       .slot = fields(config.eval, config.data),
       .doc = "Evaluation on data.eval while training."},
      {.name = "log", .slot = fields(config.log), .doc = "Logging."},
  }};
}

}  // namespace llm::config
