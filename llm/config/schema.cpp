// Every key, once: its section, kind, bounds, unit, meaning, whether it may change on resume, and
// the names it had. A feature to come is one NotYet entry, or a planned word of a choice.
// One file, though long: it is a table, and what users are promised is read in one place.

#include <utility>

#include "llm/config/fields.h"
#include "llm/config/words.h"

namespace llm::config {
namespace {

constexpr Range at_least(double least) {
  return {.least = least};
}
constexpr Range between(double least, double most) {
  return {.least = least, .most = most};
}
constexpr Range above(double least) {
  return {.least = least, .above_least = true};
}

constexpr double kMany = 1e6;  ///< keeps products of counts far from overflow

Field not_yet(std::string name, std::string doc) {
  return {.name = std::move(name), .slot = NotYet{}, .doc = std::move(doc)};
}

constexpr OnResume fixed_if(bool is_so) {
  return is_so ? OnResume::Fixed : OnResume::Free;
}

/// Of a field: why it has no effect, where that is so.
std::string no_effect(bool is_so, const char* because) {
  return is_so ? because : "";
}

/// A count of steps as it is written now; 0 was "never".
std::string every_text(const std::string& old_value) {
  return old_value == "0" ? "never" : old_value + " steps";
}

template <class Item, class Fields>
TableList list_of(std::vector<Item>& items, Fields fields, std::string shorthand = "") {
  return {.size = [&items] { return items.size(); },
          .resize = [&items](std::size_t size) { items.resize(size); },
          .item = [&items, fields](std::size_t i) { return fields(items[i], i); },
          .shorthand = std::move(shorthand)};
}

Table fields(ModelSection& model) {
  return {{
      {.name = "path",
       .slot = string(model.path),
       .doc = "Hugging Face folder of the model: config.json, safetensors files, tokenizer.json; "
              "or the "
              "name of a model on a hub, ORG/NAME, whose folder is that of the hub's cache, "
              "fetched where it is missing",
       .required = true,
       .of_host = true},
      {.name = "init",
       .slot = choice<Init>(model.init, {{"weights", Init::Weights}, {"random", Init::Random}}),
       .doc = "weights: start from those in the folder; random: from random ones, drawn by "
              "train.seed and config.json's initializer_range, for training from scratch; the "
              "folder then needs config.json and tokenizer.json only"},
      {.name = "ignore_fields",
       .slot = strings(model.ignore_fields),
       .doc = "fields of config.json that are read as if they were not there; for those that this "
              "version does not know and that do not change what the model computes",
       .on_resume = OnResume::Fixed},
      not_yet("overrides", "changes to config.json's fields"),
      not_yet("trainable", "training a part of the parameters"),
  }};
}

Table fields(DataColumns& columns, DataFormat format, bool trains) {
  const std::string idle = no_effect(format == DataFormat::Squad, "the format is squad");
  return {{
      {.name = "prompt",
       .slot = string(columns.prompt),
       .doc = "the field of a record that holds the prompt",
       .required = true,
       .on_resume = fixed_if(trains),
       .idle = idle},
      {.name = "completion",
       .slot = string(columns.completion),
       .doc = "the field of a record that holds what the model learns to write after the prompt",
       .required = true,
       .on_resume = fixed_if(trains),
       .idle = idle},
  }};
}

/// The keys of a data file, which must stay the same on resume if the run `trains` on it.
/// `old_limit` is the key that the first one's limit had.
Table fields(DataSet& set, bool trains, const std::string& old_limit) {
  const auto file_order = [](const std::string&) { return std::string("file"); };
  std::vector<OldName> old_limits;
  std::vector<OldName> old_orders;
  if (!old_limit.empty()) {
    old_limits = {{.key = old_limit}};
    old_orders = {{.key = old_limit, .value = file_order}};
  }
  return {{
      {.name = "path",
       .slot = string(set.path),
       .doc =
           "file of questions, or of prompts and completions, or several files, a * in their name "
           "standing for any characters; or a data set on a hub, ORG/NAME, ORG/NAME:SPLIT or "
           "ORG/NAME:CONFIG/SPLIT, of the hub's cache, fetched where it is missing",
       .required = true,
       .of_host = true},
      {.name = "format",
       .slot = choice<DataFormat>(set.format,
                                  {{"auto", DataFormat::Auto},
                                   {"squad", DataFormat::Squad},
                                   {"jsonl", DataFormat::Jsonl},
                                   {"json", DataFormat::Json},
                                   {"parquet", DataFormat::Parquet}},
                                  {"csv", "chat", "alpaca", "text"}),
       .doc =
           "squad: SQuAD's JSON, v1.1 or v2.0; jsonl: an object with a prompt and a completion a "
           "line; json: an array of such objects; parquet: rows with a prompt and a completion, or "
           "with SQuAD's columns; auto: by the name's end (.jsonl, .ndjson, .parquet), else "
           "parquet if the file begins as one, json if it begins with [, else squad; the choice is "
           "written into the run's config.toml",
       .on_resume = fixed_if(trains),
       .before = "squad"},
      {.name = "limit",
       .slot = integer_or("all", set.limit, at_least(1)),
       .doc = "use only so many questions",
       .unit = "samples",
       .on_resume = fixed_if(trains),
       .old_names = old_limits,
       .old_value = OldValue{"0", "all"}},
      {.name = "limit_order",
       .slot = choice<LimitOrder>(set.limit_order,
                                  {{"random", LimitOrder::Random}, {"file", LimitOrder::File}}),
       .doc = "random: the questions that a limit leaves are drawn by train.seed; file: they are "
              "the first",
       .on_resume = fixed_if(trains),
       .idle = no_effect(!set.limit, "all questions are used"),
       .old_names = old_orders,
       .before = "file"},
      {.name = "columns", .slot = fields(set.columns, set.format, trains)},
      not_yet("name", "names of data sets in logs"),
      not_yet("template", "templates of prompts"),
      not_yet("supervise", "a choice of what is supervised"),
  }};
}

Table training_fields(DataSet& set, std::size_t i) {
  Table table = fields(set, true, i == 0 ? "data.train_limit" : "");
  table.fields.push_back(
      {.name = "weight",
       .slot = number(set.weight, {.least = 0, .most = 1000, .above_least = true}),
       .doc = "how often a question is seen in an epoch; of 0.25, each epoch has the same quarter "
              "of the questions, drawn by train.seed",
       .on_resume = OnResume::Fixed});
  return table;
}

Table held_out_fields(DataSet& set, std::size_t i) {
  return fields(set, false, i == 0 ? "data.eval_limit" : "");
}

Table fields(DataSection& data) {
  return {{
      {.name = "max_length",
       .slot = integer_or("model", data.max_length, at_least(1)),
       .doc = "longest sample, prompt and answer together; the context is cut to fit; model: the "
              "model's own context",
       .unit = "tokens",
       .on_resume = OnResume::Fixed,
       .old_value = OldValue{"0", "model"}},
      {.name = "max_answer_tokens",
       .slot = integer(data.max_answer_tokens, at_least(1)),
       .doc = "room kept for the answer and its end token, and the most that is generated",
       .unit = "tokens",
       .on_resume = OnResume::Fixed},
      {.name = "cache",
       .slot = string(data.cache),
       .doc = "folder where tokenized files are kept for the next run, by their content; auto: "
              "sherd/tokens in $XDG_CACHE_HOME or ~/.cache; none: keep nothing",
       .of_host = true,
       .old_value = OldValue{"", "auto"}},
      {.name = "packing",
       .slot = choice<Packing>(data.packing,
                               {{"none", Packing::None}, {"first_fit", Packing::FirstFit}}),
       .doc = "first_fit: several samples share a row of at most max_length tokens, each by "
              "itself; train.global_batch and train.micro_batch count rows then",
       .on_resume = OnResume::Fixed},
      not_yet("group_by_length", "batches of samples of like length"),
      {.name = "on_bad_sample",
       .slot = choice<OnBadSample>(data.on_bad_sample,
                                   {{"error", OnBadSample::Error}, {"skip", OnBadSample::Skip}}),
       .doc = "error: a file with a sample that cannot be read is refused; skip: such samples are "
              "left out, and listed in bad_samples.jsonl in train.output"},
      {.name = "max_bad_samples",
       .slot = integer(data.max_bad_samples, at_least(0)),
       .doc = "the most samples of a data set that are skipped; one with more is refused",
       .unit = "samples",
       .idle = no_effect(data.on_bad_sample == OnBadSample::Error, "data.on_bad_sample is error")},
      not_yet("workers", "threads that prepare data"),
      {.name = "train",
       .slot = list_of(data.train, training_fields, "path"),
       .doc = "What is trained on. `train = \"f.json\"` is short for one file, and `--data.train "
              "f.json` gives it as a flag.",
       .required = true},
      {.name = "eval",
       .slot = list_of(data.eval, held_out_fields, "path"),
       .doc =
           "What is evaluated, held out from training, each file by itself; without it nothing is. "
           "`eval = \"f.json\"` is short for one file."},
  }};
}

Table fields(TrainSection& train, const DeviceSection& device) {
  return {{
      {.name = "output",
       .slot = string(train.output),
       .doc = "folder of the run: checkpoints and log; made if it is not there",
       .required = true,
       .default_words = "runs/ and the name of the file; required without one"},
      {.name = "epochs",
       .slot = integer(train.epochs, between(1, kMany)),
       .doc = "passes over data.train; more of them continue a run that has finished",
       .on_resume = OnResume::Numbers,
       .idle = no_effect(train.max_steps.has_value(), "train.max_steps is set")},
      {.name = "max_steps",
       .slot = integer_or("epochs", train.max_steps, at_least(1)),
       .doc = "length of the run and of its schedule; epochs: as train.epochs says",
       .unit = "steps",
       .on_resume = OnResume::Numbers,
       .old_value = OldValue{"0", "epochs"}},
      {.name = "global_batch",
       .slot = integer(train.global_batch, between(1, kMany)),
       .doc = "samples in one optimizer step, over all ranks",
       .unit = "samples",
       .on_resume = OnResume::Fixed},
      {.name = "micro_batch",
       .slot = integer_or("auto", train.micro_batch, between(1, kMany)),
       .doc = "samples a rank computes at once; auto: the fastest that fits, by sherd plan; "
              "gradients are accumulated over global_batch / "
              "(ranks × micro_batch)",
       .unit = "samples"},
      {.name = "seed",
       .slot = integer(train.seed, at_least(0)),
       .doc = "decides the order of the samples, together with the epoch, and random weights",
       .on_resume = OnResume::Fixed},
      {.name = "on_non_finite",
       .slot = choice<OnNonFinite>(train.on_non_finite,
                                   {{"stop", OnNonFinite::Stop}, {"skip", OnNonFinite::Skip}}),
       .doc = "what a loss or a gradient norm that is not finite leads to; stop: the run ends with "
              "exit code 79; skip: every rank leaves the update of that step out, parameters and "
              "moments stay as they are, and the run goes on to the next batch",
       .on_resume = OnResume::Numbers},
      {.name = "max_skipped",
       .slot = integer(train.max_skipped, between(1, kMany)),
       .doc = "the most steps of a run that are skipped, counted from its beginning, also across "
              "resumes; one more ends it with exit code 79",
       .unit = "steps",
       .idle = no_effect(train.on_non_finite == OnNonFinite::Stop, "train.on_non_finite is stop")},
      {.name = "deterministic",
       .slot = flag(train.deterministic),
       .doc =
           "use GPU kernels whose results repeat bit for bit in each run, as far as LibTorch "
           "says; may be slower; sets CUBLAS_WORKSPACE_CONFIG. On CPUs every run repeats its bits",
       .idle =
           no_effect(device.kind == DeviceKind::Cpu && train.deterministic, "device.kind is cpu")},
  }};
}

Table fields(DeviceSection& device) {
  return {{
      {.name = "kind",
       .slot = choice<DeviceKind>(
           device.kind,
           {{"auto", DeviceKind::Auto}, {"cpu", DeviceKind::Cpu}, {"cuda", DeviceKind::Cuda}}),
       .doc = "where a rank computes; cuda: on an NVIDIA GPU of its own; auto: on GPUs where there "
              "are any that can be used, else on the CPU"},
      {.name = "threads",
       .slot = integer_or("auto", device.threads, between(1, 1024)),
       .doc = "CPU threads of each rank; auto: what OMP_NUM_THREADS says",
       .of_host = true,
       .old_names = {{.key = "train.threads"}},
       .old_value = OldValue{"0", "auto"}},
      {.name = "sync_debug_mode",
       .slot = choice<SyncDebug>(device.sync_debug_mode, {{"default", SyncDebug::Default},
                                                          {"warn", SyncDebug::Warn},
                                                          {"error", SyncDebug::Error}}),
       .doc =
           "for those who change Sherd: where an operator makes the host wait for a GPU, from the "
           "second step on, say so, or end the run",
       .of_host = true},
      {.name = "cuda_graphs",
       .slot = flag(device.cuda_graphs),
       .doc = "run micro-batches that come again, with documents of the same lengths, as graphs of "
              "the GPU, which one launch of the host starts: for small models and short texts of "
              "one length. Takes what activations take once more, and goes with no memory.offload "
              "but of the optimizer",
       .of_host = true},
      {.name = "attention",
       .slot = choice<AttentionKernel>(device.attention, attention_words()),
       .doc =
           "which kernel computes attention on GPUs; cudnn: cuDNN's, for documents of one length "
           "in bfloat16 or float16; flash: LibTorch's flash attention; plain: matrix products; "
           "auto: the fastest that serves the model. Where the named one does not serve, the "
           "next one computes, and a line says why",
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
       .doc = "what updates the parameters",
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
       .doc = "decay those parameters too; false: only matrices and embeddings",
       .on_resume = OnResume::Numbers,
       .idle = no_effect(optim.weight_decay == 0, "optim.weight_decay is 0"),
       .before = "true"},
      {.name = "clip_grad_norm",
       .slot = number_or("none", optim.clip_grad_norm, above(0)),
       .doc = "largest global norm of the gradients, which are scaled down to it; none: no "
              "clipping",
       .on_resume = OnResume::Numbers,
       .old_value = OldValue{"0", "none"}},
      not_yet("group", "groups of parameters with options of their own"),
  }};
}

Table fields(ScheduleSection& schedule) {
  return {{
      {.name = "kind",
       .slot = choice<Schedule>(schedule.kind, {{"linear", Schedule::Linear},
                                                {"cosine", Schedule::Cosine},
                                                {"constant", Schedule::Constant}}),
       .doc = "how the learning rate falls after the warm-up",
       .on_resume = OnResume::Numbers,
       .old_names = {{.key = "optim.schedule"}}},
      {.name = "warmup",
       .slot = warmup(schedule.warmup),
       .doc = "how long the learning rate rises from 0 to optim.lr",
       .on_resume = OnResume::Numbers,
       .old_names = {{.key = "optim.warmup_steps",
                      .value = [](const std::string& steps) { return steps + " steps"; }}}},
      {.name = "min_lr_ratio",
       .slot = number(schedule.min_lr_ratio, between(0, 1)),
       .doc = "the learning rate at the end of a linear or cosine schedule, as a share of optim.lr",
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
       .doc = "full_shard frees gathered parameters after the forward pass; shard_grad_op keeps "
              "them until the backward pass; no_shard gives every rank the whole model; "
              "hybrid_shard and hybrid_shard_grad_op shard within groups of parallel.shard_size "
              "ranks, each with a copy of the model"},
      {.name = "shard_size",
       .slot = integer_or("host", parallel.shard_size, between(1, kMany)),
       .doc = "ranks that share one copy of the model under a hybrid strategy; host: those of a "
              "host",
       .unit = "ranks",
       .idle = no_effect(!hybrid, "parallel.strategy is not a hybrid one"),
       .old_value = OldValue{"0", "host"}},
      {.name = "reshard_after_forward_size",
       .slot = integer_or("strategy", parallel.reshard_after_forward_size, between(1, kMany)),
       .doc = "between forward and backward a rank keeps 1/n of the gathered parameters, so that "
              "the second gather stays within n ranks; strategy: as the strategy says",
       .unit = "ranks",
       .idle = no_effect(!reshards, "parallel.strategy keeps gathered parameters until backward"),
       .old_value = OldValue{"0", "strategy"}},
      {.name = "prefetch_depth",
       .slot = integer(parallel.prefetch_depth, between(0, 8)),
       .doc = "units gathered ahead of the one that computes",
       .unit = "units",
       .idle = no_effect(parallel.strategy == NoShard, "parallel.strategy gathers nothing")},
      {.name = "timeout",
       .slot = duration_or("auto", parallel.timeout, std::chrono::seconds(1)),
       .doc = "how long a rank waits for another, at the start and in each exchange, before it "
              "gives up; auto: what `sherd launch --timeout` or SHERD_TIMEOUT says, else 10 min"},
      {.name = "reduce_scatter",
       .slot = choice<ReduceScatter>(
           parallel.reduce_scatter,
           {{"rank_order", ReduceScatter::RankOrder}, {"native", ReduceScatter::Native}}),
       .doc =
           "how several GPUs sum gradients; rank_order: an all-to-all, and each adds up its part "
           "in the order of ranks, the same bits on any number of them; native: NCCL's "
           "reduce-scatter in precision.reduce_dtype, whose bits depend on their number, and "
           "which network switches may compute",
       .on_resume = OnResume::Numbers},
      not_yet("transport", "a choice of what carries parameters and gradients"),
  }};
}

Table fields(PrecisionSection& precision) {
  return {{
      {.name = "param_dtype",
       .slot = choice<ParamDtype>(precision.param_dtype, param_dtype_words(), {"fp8", "float8"}),
       .doc = "dtype of the forward and backward pass; master weights stay float32; auto: "
              "bfloat16 where every rank's device is fast at it, else float32; the choice is "
              "written into the run's config.toml",
       .on_resume = OnResume::Numbers},
      {.name = "reduce_dtype",
       .slot = choice<ReduceDtype>(precision.reduce_dtype, {{"float32", ReduceDtype::Float32},
                                                            {"bfloat16", ReduceDtype::BFloat16}}),
       .doc = "dtype that sums of gradients are kept in; bfloat16, under bfloat16, takes two bytes "
              "a parameter less and rounds the sum of each micro-batch",
       .on_resume = OnResume::Numbers,
       .idle = no_effect(precision.param_dtype == ParamDtype::Float32 ||
                             precision.param_dtype == ParamDtype::Float16,
                         "precision.param_dtype is not bfloat16")},
      {.name = "master",
       .slot = choice<MasterFormat>(precision.master, master_words()),
       .doc =
           "how master weights are kept under bfloat16: float32, beside the weights that travel; "
           "split: as those and 16 more bits, in two bytes a parameter less, with the same "
           "results to the bit; bfloat16: the weights that travel alone, which updates round at "
           "random",
       .on_resume = OnResume::Numbers,
       .idle = no_effect(precision.param_dtype == ParamDtype::Float32,
                         "precision.param_dtype is float32: weights are their own masters")},
      {.name = "moments",
       .slot = choice<MomentsDtype>(
           precision.moments,
           {{"float32", MomentsDtype::Float32}, {"bfloat16", MomentsDtype::BFloat16}},
           {"int8", "fp8"}),
       .doc = "dtype of AdamW's moments; bfloat16 halves their memory and adds noise to updates",
       .on_resume = OnResume::Numbers,
       .old_names = {{.key = "precision.moments_dtype"}, {.key = "memory.moments_dtype"}}},
      {.name = "scaler",
       .slot = choice<Scaler>(precision.scaler, {{"auto", Scaler::Auto}, {"none", Scaler::None}}),
       .doc = "auto: under float16 the loss is multiplied by a scale that adapts itself, so that "
              "small gradients do not vanish; none: it is not",
       .on_resume = OnResume::Numbers,
       .idle = no_effect(precision.param_dtype != ParamDtype::Float16,
                         "precision.param_dtype is not float16")},
  }};
}

Table fields(OffloadSection& offload) {
  return {{
      {.name = "optimizer",
       .slot = host_or_disk_folder(offload.optimizer_on_host, offload.optimizer_folder),
       .doc = "AdamW's moments and, under bfloat16, the masters: 8 to 12 bytes a parameter that a "
              "rank then does not hold, with the same results to the bit; each step reads and "
              "writes them. host: in pinned memory of a GPU's host. disk: in a folder on a fast "
              "local disk, where every rank keeps a file without a name that ends with it; on GPUs "
              "it comes through the host",
       .of_host = true},
      {.name = "gradients",
       .slot = host_or_disk_folder(offload.gradients_on_host, offload.gradient_folder),
       .doc = "the sums of gradients, 4 bytes a parameter (2 under precision.reduce_dtype = "
              "\"bfloat16\"): each unit's is in memory while it is added to and for its update",
       .of_host = true},
      {.name = "parameters",
       .slot = host_or_disk_folder(offload.parameters_on_host, offload.parameter_folder),
       .doc = "parameters as they travel, 2 bytes each under bfloat16, else 4: a unit's are read "
              "when it is gathered; on CPUs several ranks exchange over process groups then, and "
              "share no memory",
       .of_host = true},
      {.name = "activations",
       .slot = host_or_none(offload.activations_on_host),
       .doc = "what blocks keep for their backward pass, in pinned memory of the host, for GPUs: "
              "with activation_checkpointing their inputs, without it all of it; that of two "
              "blocks stays on the GPU"},
  }};
}

Table fields(MemorySection& memory) {
  return {{
      {.name = "activation_checkpointing",
       .slot = flag(memory.activation_checkpointing),
       .doc =
           "keep only the inputs of each block, and compute the rest again in the backward pass"},
      {.name = "loss_chunk_tokens",
       .slot = integer_or("auto", memory.loss_chunk_tokens, at_least(1)),
       .doc = "rows of logits, one per supervised token, that the loss holds at a time; more where "
              "splitting them would take more memory; auto: as many as loss_chunk_bytes holds",
       .unit = "tokens"},
      {.name = "loss_chunk_bytes",
       .slot = integer_or("auto", memory.loss_chunk_bytes, at_least(1)),
       .doc = "bytes that the logits of one chunk of the loss may take: the chunk is the most rows "
              "that fit, at most 8192; auto: 1/32 of a GPU's memory, on a CPU 512 rows",
       .unit = "bytes",
       .idle =
           no_effect(memory.loss_chunk_tokens.has_value(), "memory.loss_chunk_tokens is given")},
      {.name = "offload",
       .slot = fields(memory.offload),
       .doc = "What rests elsewhere while nothing computes with it: \"none\", \"disk:FOLDER\", or "
              "for GPUs \"host\"."},
  }};
}

Table fields(CheckpointSection& checkpoint, const std::string& not_evaluated) {
  return {{
      {.name = "every",
       .slot = every(checkpoint.every),
       .doc = "how often to save; a stop on request saves too",
       .old_names = {{.key = "checkpoint.every_steps", .value = every_text}}},
      {.name = "at_end", .slot = flag(checkpoint.at_end), .doc = "save after the last step"},
      {.name = "keep",
       .slot = integer(checkpoint.keep, between(1, kMany)),
       .doc = "checkpoints kept; older ones are removed after a save",
       .unit = "checkpoints",
       .idle =
           no_effect(checkpoint.every == Every{} && !checkpoint.best, "checkpoint.every is never")},
      {.name = "best",
       .slot = flag(checkpoint.best),
       .doc = "save after each evaluation that is the best so far (eval.best_by), and keep the "
              "best one's checkpoint beside those of checkpoint.keep",
       .idle = not_evaluated},
      {.name = "export",
       .slot = choice<ExportOf>(
           checkpoint.export_of,
           {{"none", ExportOf::None}, {"end", ExportOf::End}, {"best", ExportOf::Best}}),
       .doc = "when the run has come to its end, leave its last checkpoint, or that of the best "
              "evaluation (which turns checkpoint.best on), as a Hugging Face folder: export in "
              "train.output"},
      {.name = "resume",
       .slot = string(checkpoint.resume),
       .doc =
           "auto: go on from the newest checkpoint of train.output, if there is one; never: "
           "start anew, refused where train.output holds checkpoints; overwrite: delete them and "
           "start anew, once: the same command, or a restart of the same job, resumes the run that "
           "it has begun; else the folder of a checkpoint or of a run"},
      not_yet("from", "starting a new run from a checkpoint's weights"),
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
       .doc = "evaluate before the first step too, to see what the training changes",
       .idle = no_data},
      {.name = "every",
       .slot = every(eval.every),
       .doc = "how often to evaluate data.eval",
       .idle = no_data,
       .old_names = {{.key = "eval.every_steps", .value = every_text}}},
      {.name = "at_end", .slot = flag(eval.at_end), .doc = "evaluate after the last step"},
      {.name = "generate",
       .slot = flag(eval.generate),
       .doc = "also answer the questions, for exact match and F1; slower than the loss alone",
       .idle = not_at_all},
      {.name = "predictions",
       .slot = flag(eval.predictions),
       .doc = "leave the answers of each evaluation in train.output: predictions-STEP.json as "
              "SQuAD's evaluation script reads it, predictions-STEP.jsonl with questions and "
              "scores",
       .idle = eval.generate ? not_at_all : "eval.generate is false"},
      {.name = "batch",
       .slot = integer(eval.batch, between(1, kMany)),
       .doc = "samples a rank evaluates at once",
       .unit = "samples",
       .idle = not_at_all},
      {.name = "best_by",
       .slot = choice<BestBy>(eval.best_by, {{"auto", BestBy::Auto},
                                             {"loss", BestBy::Loss},
                                             {"em", BestBy::Em},
                                             {"f1", BestBy::F1}}),
       .doc = "what tells the best evaluation of the first data.eval: the lowest loss, the highest "
              "exact match or F1; auto: f1 with eval.generate, else loss",
       .idle = not_trained},
      {.name = "patience",
       .slot = integer_or("none", eval.patience, between(1, kMany)),
       .doc = "end the run after so many evaluations in a row without an improvement; none: never",
       .unit = "evaluations"},
      {.name = "min_delta",
       .slot = number(eval.min_delta, at_least(0)),
       .doc = "what counts as an improvement for eval.patience: more than this, in the unit of "
              "eval.best_by (percent for em and f1)",
       .idle = no_effect(!eval.patience, "eval.patience is none")},
      not_yet("metrics", "a choice of metrics"),
  }};
}

/// A place of the log, the `i`th of its list.
Table fields(Sink& sink, std::size_t i) {
  Field path{.name = "path",
             .slot = string(sink.path),
             .doc =
                 "jsonl: the file of the log; tensorboard: the folder of its event files; wandb: "
                 "the folder in which its folder wandb is made",
             .default_words =
                 "log.jsonl, tensorboard or wandb in train.output; WANDB_DIR says "
                 "another place for wandb",
             .idle = no_effect(sink.kind == SinkKind::Mlflow,
                               "MLFLOW_TRACKING_URI says where the server is"),
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
            .doc = "jsonl: the run's own log, which is written without a sink too; tensorboard: "
                   "event files; wandb: an offline run of Weights & Biases; mlflow: a tracking "
                   "server"},
           std::move(path),
           {.name = "sync",
            .slot = flag(sink.sync),
            .doc = "run `wandb sync` when the run has come to its end; false: say the command",
            .idle = no_effect(sink.kind != SinkKind::Wandb, "the sink's kind is not wandb")}}};
}

Table fields(LogSection& log) {
  return {{
      {.name = "every_steps",
       .slot = integer(log.every_steps, at_least(1)),
       .doc = "print the step line every so many steps",
       .unit = "steps"},
      {.name = "name",
       .slot = string(log.name),
       .doc = "what trackers call the run",
       .default_words = "WANDB_NAME for wandb, else the name of train.output's folder"},
      {.name = "project",
       .slot = string(log.project),
       .doc = "what trackers group runs by: a project of W&B, an experiment of MLflow",
       .default_words = "WANDB_PROJECT or MLFLOW_EXPERIMENT_NAME, else sherd"},
      {.name = "tags", .slot = strings(log.tags), .doc = "words by which trackers find runs"},
      {.name = "trace_steps",
       .slot = step_span(log.trace_steps),
       .doc =
           "steps that each rank records: a Chrome trace and a timeline of its memory in "
           "train.output/traces, on a GPU also the time of its kernels ([runs](runs.md#traces))"},
      {.name = "sink",
       .slot = list_of(log.sink, [](Sink& sink, std::size_t i) { return fields(sink, i); }),
       .doc = "Where each step is written to, beside the step line; several at once, one of a "
              "kind ([trackers](trackers.md))."},
  }};
}

}  // namespace

Table schema(RunConfig& config) {
  Field adapter = not_yet("adapter", "adapters such as LoRA");
  adapter.old_names = {{.key = "lora"}};
  return {{
      {.name = "model", .slot = fields(config.model), .doc = "The model that is trained."},
      std::move(adapter),
      {.name = "data", .slot = fields(config.data), .doc = "What it is trained and evaluated on."},
      {.name = "train",
       .slot = fields(config.train, config.device),
       .doc = "Length and size of the run."},
      {.name = "device", .slot = fields(config.device), .doc = "Where it computes."},
      {.name = "optim", .slot = fields(config.optim), .doc = "AdamW."},
      {.name = "schedule", .slot = fields(config.schedule), .doc = "The learning rate of a step."},
      {.name = "parallel",
       .slot = fields(config.parallel),
       .doc = "How the model is sharded over the ranks."},
      {.name = "precision", .slot = fields(config.precision), .doc = "Dtypes."},
      {.name = "memory", .slot = fields(config.memory), .doc = "What is traded for memory."},
      {.name = "checkpoint",
       .slot = fields(config.checkpoint, not_evaluated(config.eval, config.data)),
       .doc = "Saving and resuming."},
      {.name = "eval",
       .slot = fields(config.eval, config.data),
       .doc = "Evaluation on data.eval while training."},
      {.name = "log", .slot = fields(config.log), .doc = "What is written about each step."},
  }};
}

}  // namespace llm::config
