#include "llm/config/fields.h"

#include <cmath>
#include <utility>

namespace llm::config {
namespace {

using Fields = std::vector<Field>;

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

/// `member`'s values must be numbered from 0 in the order of the field's choices.
template <class Enum>
Choice choice(Enum& member) {
  return {[&member] { return static_cast<std::size_t>(member); },
          [&member](std::size_t position) { member = static_cast<Enum>(position); }};
}

Fields fields(ModelSection& model) {
  return {
      {.name = "path",
       .slot = &model.path,
       .doc = "Hugging Face folder of the model: config.json, safetensors files, tokenizer.json",
       .required = true},
      {.name = "init",
       .slot = choice(model.init),
       .doc = "weights: start from those in the folder; random: from random ones, drawn by "
              "train.seed and config.json's initializer_range, for training from scratch; the "
              "folder then needs config.json and tokenizer.json only",
       .choices = {"weights", "random"}}};
}

Fields fields(DataSection& data) {
  return {
      {.name = "train",
       .slot = &data.train,
       .doc = "training questions, a SQuAD v1.1 JSON file",
       .required = true},
      {.name = "eval",
       .slot = &data.eval,
       .doc = "held-out questions, a SQuAD v1.1 JSON file; without it nothing is evaluated"},
      {.name = "max_length",
       .slot = &data.max_length,
       .doc = "longest sample, prompt and answer together; the context is cut to fit; 0: the "
              "model's context",
       .unit = "tokens",
       .range = at_least(0)},
      {.name = "max_answer_tokens",
       .slot = &data.max_answer_tokens,
       .doc = "room kept for the answer and its end token, and the most that is generated",
       .unit = "tokens",
       .range = at_least(1)},
      {.name = "train_limit",
       .slot = &data.train_limit,
       .doc = "use only the first questions of data.train; 0: all",
       .unit = "samples",
       .range = at_least(0)},
      {.name = "eval_limit",
       .slot = &data.eval_limit,
       .doc = "use only the first questions of data.eval; 0: all",
       .unit = "samples",
       .range = at_least(0)},
      {.name = "cache",
       .slot = &data.cache,
       .doc = "folder where tokenized files are kept for the next run, by their content; without "
              "it sherd/tokens in $XDG_CACHE_HOME or ~/.cache; none: keep nothing"},
  };
}

Fields fields(TrainSection& train) {
  return {
      {.name = "output",
       .slot = &train.output,
       .doc = "folder of the run: checkpoints and log; made if it is not there",
       .required = true},
      {.name = "epochs",
       .slot = &train.epochs,
       .doc = "passes over data.train",
       .range = between(1, kMany)},
      {.name = "max_steps",
       .slot = &train.max_steps,
       .doc = "length of the run and of its schedule; 0: from train.epochs",
       .unit = "steps",
       .range = at_least(0)},
      {.name = "global_batch",
       .slot = &train.global_batch,
       .doc = "samples in one optimizer step, over all ranks",
       .unit = "samples",
       .range = between(1, kMany)},
      {.name = "micro_batch",
       .slot = &train.micro_batch,
       .doc = "samples a rank computes at once; gradients are accumulated over global_batch / "
              "(ranks × micro_batch)",
       .unit = "samples",
       .range = at_least(1)},
      {.name = "seed",
       .slot = &train.seed,
       .doc = "decides the order of the samples, together with the epoch, and random weights",
       .range = at_least(0)},
      {.name = "threads",
       .slot = &train.threads,
       .doc = "CPU threads of each rank; 0: what OMP_NUM_THREADS says",
       .range = between(0, 1024)},
  };
}

Fields fields(OptimSection& optim) {
  return {
      {.name = "lr", .slot = &optim.lr, .doc = "peak learning rate of AdamW", .range = above(0)},
      {.name = "betas",
       .slot = &optim.betas,
       .doc = "AdamW's decay rates of the two moments",
       .range = {.least = 0, .most = 1, .below_most = true}},
      {.name = "eps", .slot = &optim.eps, .doc = "AdamW's epsilon", .range = above(0)},
      {.name = "weight_decay",
       .slot = &optim.weight_decay,
       .doc = "AdamW's decoupled weight decay, on every parameter",
       .range = at_least(0)},
      {.name = "schedule",
       .slot = choice(optim.schedule),
       .doc = "how the learning rate falls after the warm-up",
       .choices = {"linear", "cosine", "constant"}},
      {.name = "warmup_steps",
       .slot = &optim.warmup_steps,
       .doc = "steps over which the learning rate rises from 0 to optim.lr",
       .unit = "steps",
       .range = at_least(0)},
      {.name = "min_lr_ratio",
       .slot = &optim.min_lr_ratio,
       .doc = "the learning rate at the end of a linear or cosine schedule, as a share of optim.lr",
       .range = between(0, 1)},
      {.name = "clip_grad_norm",
       .slot = &optim.clip_grad_norm,
       .doc = "largest global norm of the gradients, which are scaled down to it; 0: no clipping",
       .range = at_least(0)},
  };
}

Fields fields(ParallelSection& parallel) {
  return {
      {.name = "strategy",
       .slot = choice(parallel.strategy),
       .doc = "full_shard frees gathered parameters after the forward pass; shard_grad_op keeps "
              "them until the backward pass; no_shard gives every rank the whole model; "
              "hybrid_shard and hybrid_shard_grad_op shard within groups of parallel.shard_size "
              "ranks, each with a copy of the model",
       .choices = {"full_shard", "shard_grad_op", "no_shard", "hybrid_shard",
                   "hybrid_shard_grad_op"}},
      {.name = "shard_size",
       .slot = &parallel.shard_size,
       .doc = "ranks that share one copy of the model under a hybrid strategy; 0: those of a host",
       .unit = "ranks",
       .range = at_least(0)},
      {.name = "reshard_after_forward_size",
       .slot = &parallel.reshard_after_forward_size,
       .doc = "between forward and backward a rank keeps 1/n of the gathered parameters, so that "
              "the second gather stays within n ranks; 0: as the strategy says",
       .unit = "ranks",
       .range = at_least(0)},
      {.name = "prefetch_depth",
       .slot = &parallel.prefetch_depth,
       .doc = "units gathered ahead of the one that computes",
       .unit = "units",
       .range = between(0, 8)},
  };
}

Fields fields(MemorySection& memory) {
  return {
      {.name = "activation_checkpointing",
       .slot = &memory.activation_checkpointing,
       .doc =
           "keep only the inputs of each block, and compute the rest again in the backward pass"},
      {.name = "moments_dtype",
       .slot = choice(memory.moments_dtype),
       .doc = "dtype of AdamW's moments; bfloat16 halves their memory and adds noise to updates",
       .choices = {"float32", "bfloat16"}},
      {.name = "loss_chunk_tokens",
       .slot = &memory.loss_chunk_tokens,
       .doc = "rows of logits, one for each supervised token, that are held at a time; more where "
              "splitting them would take more memory",
       .unit = "tokens",
       .range = at_least(1)},
  };
}

Fields fields(PrecisionSection& precision) {
  return {
      {.name = "param_dtype",
       .slot = choice(precision.param_dtype),
       .doc = "dtype of the forward and backward pass; master weights stay float32",
       .choices = {"float32", "bfloat16"}},
      {.name = "reduce_dtype",
       .slot = choice(precision.reduce_dtype),
       .doc = "dtype in which gradients are summed over ranks",
       .choices = {"float32"}},
  };
}

Fields fields(CheckpointSection& checkpoint) {
  return {
      {.name = "every_steps",
       .slot = &checkpoint.every_steps,
       .doc = "save every so many steps; 0: only at the end and on a stop",
       .unit = "steps",
       .range = at_least(0)},
      {.name = "keep",
       .slot = &checkpoint.keep,
       .doc = "checkpoints kept; older ones are removed after a save",
       .unit = "checkpoints",
       .range = at_least(1)},
      {.name = "resume",
       .slot = &checkpoint.resume,
       .doc = "auto: go on from the newest checkpoint of train.output, if there is one; never: "
              "start anew, refused where train.output holds checkpoints; overwrite: delete them and "
              "start anew; else the folder of a checkpoint or of a run"},
      {.name = "at_end", .slot = &checkpoint.at_end, .doc = "save after the last step"},
  };
}

Fields fields(LogSection& log) {
  return {
      {.name = "every_steps",
       .slot = &log.every_steps,
       .doc = "print the step line every so many steps",
       .unit = "steps",
       .range = at_least(1)},
      {.name = "jsonl",
       .slot = &log.jsonl,
       .doc = "file that gets one JSON object for each step; empty: log.jsonl in train.output"},
  };
}

Fields fields(EvalSection& eval) {
  return {
      {.name = "every_steps",
       .slot = &eval.every_steps,
       .doc = "evaluate every so many steps; 0: only at the end",
       .unit = "steps",
       .range = at_least(0)},
      {.name = "at_end", .slot = &eval.at_end, .doc = "evaluate after the last step"},
      {.name = "generate",
       .slot = &eval.generate,
       .doc = "also answer the questions, for exact match and F1; slower than the loss alone"},
      {.name = "batch",
       .slot = &eval.batch,
       .doc = "samples a rank evaluates at once",
       .unit = "samples",
       .range = between(1, kMany)},
  };
}

}  // namespace

bool Range::holds(double value) const {
  return std::isfinite(value) && (above_least ? value > least : value >= least) &&
         (below_most ? value < most : value <= most);
}

std::string Range::text() const {
  // The bounds of this file are whole numbers.
  const std::string low = std::isinf(least) ? "" : std::to_string(static_cast<std::int64_t>(least));
  const std::string high = std::isinf(most) ? "" : std::to_string(static_cast<std::int64_t>(most));
  if (low.empty()) {
    return "";
  }
  if (high.empty()) {
    return (above_least ? " above " : " of at least ") + low;
  }
  return below_most ? " of at least " + low + " and below " + high : " from " + low + " to " + high;
}

const std::vector<Section>& sections() {
  static const std::vector<Section> all = {
      {"model", "The model that is trained."},
      {"data", "What it is trained and evaluated on."},
      {"train", "Length and size of the run."},
      {"optim", "AdamW and its learning rate."},
      {"parallel", "How the model is sharded over the ranks."},
      {"memory", "What is traded for memory."},
      {"precision", "Dtypes."},
      {"checkpoint", "Saving and resuming."},
      {"log", "What is written about each step."},
      {"eval", "Evaluation on data.eval while training."},
  };
  return all;
}

std::vector<Field> fields_of(RunConfig& config) {
  std::vector<Fields> parts = {fields(config.model),     fields(config.data),
                               fields(config.train),     fields(config.optim),
                               fields(config.parallel),  fields(config.memory),
                               fields(config.precision), fields(config.checkpoint),
                               fields(config.log),       fields(config.eval)};
  Fields all;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    for (Field& field : parts[i]) {
      field.section = sections()[i].name;
      all.push_back(std::move(field));
    }
  }
  return all;
}

}  // namespace llm::config
