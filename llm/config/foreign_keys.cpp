#include "llm/config/foreign_keys.h"

#include <algorithm>
#include <initializer_list>
#include <map>

#include "llm/config/value.h"

namespace llm::config {
namespace {

constexpr const char* kAccumulation =
    "micro-batches are accumulated until train.global_batch samples are done, so the number is "
    "train.global_batch / (ranks x train.micro_batch)";
constexpr const char* kBatches =
    "train.global_batch counts the samples of a step on all ranks, train.micro_batch those that a "
    "rank computes at a time";
constexpr const char* kDtype = R"("bfloat16", "float16" or "float32")";
constexpr const char* kWarmup = R"(steps such as "100 steps", or a share of the run such as 0.03)";
constexpr const char* kInterval = R"("epoch", or an interval such as "500 steps" or "10 min")";

using Keys = std::vector<std::string>;

void add(std::vector<ForeignKey>& all, std::initializer_list<const char*> names, const Keys& keys,
         const std::string& remark = "") {
  for (const char* name : names) {
    all.push_back({name, keys, remark});
  }
}

void add_optimizer(std::vector<ForeignKey>& all) {
  add(all, {"learning_rate", "base_learning_rate", "peak_lr", "max_lr"}, {"optim.lr"});
  add(all, {"wd", "decay", "l2"}, {"optim.weight_decay"});
  add(all, {"adam_beta1", "adam_beta2", "beta1", "beta2", "adam_betas"}, {"optim.betas"},
      "both, as [0.9, 0.95]");
  add(all, {"adam_epsilon", "adam_eps", "epsilon"}, {"optim.eps"});
  add(all,
      {"max_grad_norm", "max_norm", "grad_clip", "clip_grad", "gradient_clipping",
       "gradient_clip_val", "clip_grad_max_norm", "grad_norm_clip"},
      {"optim.clip_grad_norm"});
  add(all, {"optimizer", "optimizer_type", "optimizer_name", "optimizer.name"}, {"optim.kind"});
  add(all, {"memory.optimizer"}, {"memory.offload.optimizer"});
  add(all, {"warmup_steps", "warmup_ratio", "num_warmup_steps", "lr_warmup_steps", "warmup_iters"},
      {"schedule.warmup"}, kWarmup);
  add(all,
      {"lr_scheduler", "lr_scheduler_type", "lr_schedule", "scheduler", "decay_type",
       "lr_decay_style"},
      {"schedule.kind"});
  add(all, {"min_lr", "lr_min", "min_lr_factor", "cosine_min_lr_ratio"}, {"schedule.min_lr_ratio"},
      "a share of optim.lr");
}

void add_model(std::vector<ForeignKey>& all) {
  add(all, {"unfrozen_parameters", "trainable_parameters", "trainable_params", "trainable_modules"},
      {"model.trainable"}, "regular expressions for whole names of parameters");
}

void add_batches(std::vector<ForeignKey>& all) {
  add(all,
      {"per_device_train_batch_size", "per_gpu_train_batch_size", "per_device_batch_size",
       "micro_batch_size", "train_micro_batch_size_per_gpu", "local_batch_size"},
      {"train.micro_batch"});
  add(all, {"batch_size", "train_batch_size"}, {"train.global_batch", "train.micro_batch"},
      kBatches);
  add(all, {"global_batch_size"}, {"train.global_batch"});
  add(all, {"per_device_eval_batch_size", "eval_batch_size", "eval.batch_size"}, {"eval.batch"});
  add(all,
      {"gradient_accumulation_steps", "gradient_accumulation", "grad_accum", "accum",
       "accumulation_steps", "accumulate_grad_batches"},
      {"train.global_batch"}, kAccumulation);
  add(all, {"num_train_epochs", "num_epochs", "n_epochs", "max_epochs"}, {"train.epochs"});
  add(all,
      {"max_train_steps", "num_steps", "total_steps", "training_steps", "max_iters", "train_iters",
       "train.steps", "training.steps", "steps"},
      {"train.max_steps"});
  add(all, {"random_seed", "manual_seed", "data_seed"}, {"train.seed"});
  add(all, {"full_determinism", "use_deterministic_algorithms"}, {"train.deterministic"});
}

void add_preferences(std::vector<ForeignKey>& all) {
  add(all, {"dpo_beta", "rl_beta", "pref_beta"}, {"preference.beta"});
  add(all, {"loss_type", "pref_loss", "dpo_loss_type"}, {"preference.loss"});
  add(all, {"dpo_label_smoothing", "label_smoothing"}, {"preference.label_smoothing"});
  add(all, {"rl", "rlhf_type"}, {"train.objective"}, "\"dpo\"");
}

void add_files(std::vector<ForeignKey>& all) {
  add(all,
      {"model_name_or_path", "base_model", "model_name", "pretrained_model_name_or_path",
       "hf_assets_path", "tokenizer_path"},
      {"model.path"});
  add(all, {"output_dir", "dump_folder", "out_dir"}, {"train.output"});
  add(all,
      {"dataset", "datasets", "dataset_name", "dataset_path", "train_file", "train_dataset",
       "train_data"},
      {"data.train"});
  add(all,
      {"validation_file", "validation", "eval_dataset", "eval_file", "val_file", "test_datasets",
       "eval_data"},
      {"data.eval"});
  add(all,
      {"max_seq_length", "max_seq_len", "sequence_len", "sequence_length", "seq_length", "seq_len",
       "block_size", "cutoff_len", "model_max_length"},
      {"data.max_length"});
  add(all, {"sample_packing", "packed"}, {"data.packing"});
}

void add_intervals(std::vector<ForeignKey>& all) {
  add(all,
      {"save_steps", "save_strategy", "save_interval", "saves_per_epoch", "save_every",
       "checkpoint.interval"},
      {"checkpoint.every"}, kInterval);
  add(all, {"save_total_limit", "keep_latest_k"}, {"checkpoint.keep"});
  add(all, {"load_best_model_at_end"}, {"checkpoint.best"});
  add(all, {"resume_from_checkpoint", "auto_resume_from_checkpoints"}, {"checkpoint.resume"});
  add(all,
      {"eval_steps", "eval_strategy", "evaluation_strategy", "evals_per_epoch", "eval_interval",
       "run_every_n_steps", "eval.steps"},
      {"eval.every"}, kInterval);
  add(all, {"early_stopping_patience"}, {"eval.patience"});
  add(all, {"early_stopping_threshold"}, {"eval.min_delta"});
  add(all, {"metric_for_best_model"}, {"eval.best_by"});
  add(all, {"logging_steps", "log_every_n_steps", "log_freq", "log_interval"}, {"log.every_steps"});
  add(all, {"report_to", "use_wandb"}, {"log.sink"},
      R"([[log.sink]] with kind = "tensorboard", "wandb" or "mlflow")");
  add(all, {"run_name", "wandb_name", "wandb_run_name"}, {"log.name"});
  add(all, {"wandb_project"}, {"log.project"});
}

void add_machine(std::vector<ForeignKey>& all) {
  add(all,
      {"bf16", "fp16", "dtype", "torch_dtype", "mixed_precision", "mixed_precision_param", "half",
       "training.dtype"},
      {"precision.param_dtype"}, kDtype);
  add(all, {"mixed_precision_reduce", "grad_reduce_dtype"}, {"precision.reduce_dtype"});
  add(all,
      {"gradient_checkpointing", "activation_checkpoint", "enable_activation_checkpointing",
       "recompute"},
      {"memory.activation_checkpointing"});
  add(all,
      {"fsdp", "fsdp_config", "sharding_strategy", "fsdp_sharding_strategy",
       "fsdp_reshard_after_forward", "reshard_after_forward", "zero_stage", "deepspeed",
       "data_parallel_shard_degree"},
      {"parallel.strategy"});
  add(all, {"data_parallel_replicate_degree"}, {"parallel.shard_size"});
  add(all, {"fsdp_cpu_offload", "fsdp_offload_params", "cpu_offload", "offload_params"},
      {"memory.offload.optimizer", "memory.offload.gradients", "memory.offload.parameters"});
  add(all,
      {"attn_implementation", "flash_attention", "use_flash_attention_2", "sdp_attention",
       "_attn_implementation"},
      {"device.attention"});
  add(all, {"use_cpu", "no_cuda"}, {"device.kind"});
  add(all, {"num_threads", "omp_num_threads"}, {"device.threads"});
  add(all, {"ddp_timeout", "init_timeout_seconds"}, {"parallel.timeout"});
  add(all, {"load_in_8bit"}, {"model.quantize"}, R"("q8_0")");
  add(all, {"load_in_4bit"}, {}, "bases in 4 bits are not supported yet");
}

void add_adapters(std::vector<ForeignKey>& all) {
  add(all, {"lora", "use_peft", "use_lora", "finetuning_type", "peft_type"}, {"adapter.kind"},
      R"("lora")");
  add(all, {"lora_r", "lora_rank"}, {"adapter.rank"});
  add(all, {"lora_alpha"}, {"adapter.alpha"});
  add(all, {"lora_dropout"}, {"adapter.dropout"});
  add(all, {"target_modules", "lora_target_modules", "lora_target", "lora_target_linear"},
      {"adapter.targets"}, R"(a list of names, or "all-linear")");
  add(all, {"exclude_modules"}, {"adapter.exclude"});
  add(all, {"use_rslora"}, {"adapter.rank_stabilized"});
  add(all, {"layers_to_transform", "lora_layers_to_transform"}, {"adapter.layers"});
  add(all, {"additional_target", "lora_modules_to_save"}, {"adapter.modules_to_save"});
  add(all, {"adapter_name_or_path", "lora_model_dir"}, {"adapter.path"});
}

}  // namespace

const std::vector<ForeignKey>& foreign_keys() {
  static const std::vector<ForeignKey> all = [] {
    std::vector<ForeignKey> keys;
    add_optimizer(keys);
    add_model(keys);
    add_batches(keys);
    add_preferences(keys);
    add_files(keys);
    add_intervals(keys);
    add_machine(keys);
    add_adapters(keys);
    return keys;
  }();
  return all;
}

const ForeignKey* foreign_key(const std::string& key) {
  static const std::map<std::string, const ForeignKey*> by_name = [] {
    std::map<std::string, const ForeignKey*> names;
    for (const ForeignKey& foreign : foreign_keys()) {
      names.emplace(foreign.name, &foreign);
    }
    return names;
  }();
  const std::string name = with_underscores(key);
  const std::size_t dot = name.rfind('.');
  auto found = by_name.find(name);
  if (found == by_name.end() && dot != std::string::npos) {
    found = by_name.find(name.substr(dot + 1));
  }
  return found == by_name.end() ? nullptr : found->second;
}

std::string name_here(const ForeignKey& foreign, const std::string& mark) {
  if (foreign.keys.empty()) {
    return ": " + foreign.remark;
  }
  std::string names;
  for (const std::string& key : foreign.keys) {
    names += (names.empty() ? "" : " or ") + mark + key;
  }
  return "; here it is " + names + (foreign.remark.empty() ? "" : ": " + foreign.remark);
}

}  // namespace llm::config
