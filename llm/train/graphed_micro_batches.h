#pragma once
// Micro-batches of a training run as graphs of the device (`device.cuda_graphs`).

#include <list>

#include "llm/config/run_config.h"
#include "llm/inputs/batch.h"
#include "llm/model/causal_lm.h"
#include "sherd/fully_shard.h"
#include "sherd/optim.h"
#include "sherd/sharded_module.h"

namespace llm::train {

/// Before a model is made. Throws sherd::Error(Usage) where device.cuda_graphs is asked for and a
/// run of this configuration can keep no graphs. `on_cpu`: it computes there. Not collective.
void check_graphs(const config::RunConfig& config, bool on_cpu);

/// A batch comes again where its documents have the lengths, and supervised labels the number, that
/// they had: texts that were cut into blocks do, samples of any length hardly.
class GraphedMicroBatches {
 public:
  /// `scaler`: of the loss, or null; both outlive it. `asked_by`: what a user set. Throws
  /// sherd::Error(Usage) for a model on CPUs, and where sherd::MicroBatchGraphs does. Not
  /// collective.
  GraphedMicroBatches(sherd::Sharded<model::CausalLm>& model, const sherd::GradScaler* scaler,
                      const char* asked_by = "device.cuda_graphs");

  /// Forward and backward of one of a step's micro-batches, where all of it over all ranks have
  /// `supervised_tokens`; `left_out`: StepPlan::left_out; `dropout_keys`: as
  /// model::CausalLmImpl::loss_sum() takes them. Returns the loss over these tokens, not
  /// scaled: good until the next run(). Collective. Throws as sherd::MicroBatchGraphs::run().
  at::Tensor run(const inputs::Batch& batch, std::int64_t supervised_tokens,
                 const at::Tensor& left_out, const at::Tensor& dropout_keys);
  [[nodiscard]] sherd::MicroBatchGraphs::Counts counts() const { return graphs_.counts(); }

 private:
  const sherd::ops::Documents& documents_of(const inputs::Batch& batch);

  sherd::Sharded<model::CausalLm>& model_;
  const sherd::GradScaler* scaler_;
  const char* asked_by_;
  sherd::MicroBatchGraphs graphs_;
  std::list<sherd::ops::Documents> documents_;  // of the last batches: theirs are on the device
};

}  // namespace llm::train
