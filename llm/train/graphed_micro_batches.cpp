#include "llm/train/graphed_micro_batches.h"

#include <algorithm>
#include <string>
#include <utility>

#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include "llm/train/first_gradient.h"
#include "sherd/error.h"

namespace llm::train {

using sherd::ops::Documents;

namespace {

constexpr std::int64_t kMostGraphs = 8;

// What the library refuses, with what it was asked by.
template <class Work>
auto naming(const char* asked_by, const Work& work) {
  try {
    return work();
  } catch (const sherd::Error& error) {
    if (error.code() != sherd::ExitCode::Usage) {
      throw;
    }
    throw sherd::Error(error.code(),
                       std::string(error.what()) + " Graphs are what " + asked_by + " asks for.");
  }
}

void refuse_graphs(const std::string& asked_by, const std::string& why, const std::string& try_) {
  throw sherd::Error(sherd::ExitCode::Usage, asked_by + " is given, and " + why + ": " + try_);
}

void refuse_graphs_of_cpu(const std::string& asked_by) {
  refuse_graphs(asked_by, "this run computes on the CPU, which keeps no graphs",
                "leave it out, or compute on a GPU.");
}

sherd::MicroBatchGraphs graphs_of(sherd::Sharded<model::CausalLm>& model, const char* asked_by) {
  if (model.world().device().is_cpu()) {
    refuse_graphs_of_cpu(asked_by);
  }
  return naming(asked_by, [&] { return sherd::MicroBatchGraphs(model, kMostGraphs); });
}

}  // namespace

void check_graphs(const config::RunConfig& config, bool on_cpu) {
  if (!config.device.cuda_graphs) {
    return;
  }
  constexpr const char* kKey = "device.cuda_graphs";
  if (on_cpu) {
    refuse_graphs_of_cpu(kKey);
  }
  const config::OffloadSection& offload = config.memory.offload;
  for (const auto& [rests, part] :
       {std::pair(offload.gradients_on_host || !offload.gradient_folder.empty(), "gradients"),
        std::pair(offload.parameters_on_host || !offload.parameter_folder.empty(), "parameters"),
        std::pair(offload.activations_on_host, "activations")}) {
    if (rests) {
      refuse_graphs(kKey, std::string("the host moves what memory.offload.") + part + " names",
                    "leave one of them out. memory.offload.optimizer goes with graphs.");
    }
  }
}

GraphedMicroBatches::GraphedMicroBatches(sherd::Sharded<model::CausalLm>& model,
                                         const sherd::GradScaler* scaler, const char* asked_by)
    : model_(model), scaler_(scaler), asked_by_(asked_by), graphs_(graphs_of(model, asked_by)) {}

const Documents& GraphedMicroBatches::documents_of(const inputs::Batch& batch) {
  const auto found = std::find_if(documents_.begin(), documents_.end(), [&](const Documents& one) {
    return one.bounds() == batch.bounds;
  });
  if (found != documents_.end()) {
    documents_.splice(documents_.begin(), documents_, found);
  } else {
    documents_.emplace_front(batch.bounds);
  }
  if (documents_.size() > static_cast<std::size_t>(kMostGraphs)) {
    documents_.pop_back();
  }
  return documents_.front();
}

at::Tensor GraphedMicroBatches::run(const inputs::Batch& batch, std::int64_t supervised_tokens,
                                    const at::Tensor& left_out, const at::Tensor& dropout_keys) {
  const Documents& documents = documents_of(batch);
  const auto supervised = model::Supervised::of(at::tensor(batch.labels, at::kLong), documents);
  std::vector<at::Tensor> inputs = {
      at::tensor(batch.input_ids, at::kLong), supervised.positions_S, supervised.targets_S,
      at::full({}, static_cast<double>(supervised_tokens), at::kFloat),
      left_out.defined() ? left_out : at::zeros({}, at::kBool)};
  if (dropout_keys.defined()) {
    inputs.push_back(dropout_keys);
  }
  std::string bounds;
  for (const std::int64_t bound : batch.bounds) {
    bounds += std::to_string(bound) + ',';
  }
  const auto micro_batch = [&model = model_, scaler = scaler_,
                            documents](const std::vector<at::Tensor>& in) {
    const at::Tensor sum = model.run(
        [&](model::CausalLmImpl& lm, const at::Tensor& ids, const Documents& of) {
          return lm.loss_sum(ids, model::Supervised{in[1], in[2]}, of,
                             in.size() > 5 ? in[5] : at::Tensor());
        },
        in[0], documents);
    const at::Tensor loss = sum / in[3];
    (scaler != nullptr ? scaler->scale(loss) : loss).backward(first_gradient(loss, in[4]));
    return loss;
  };
  return naming(asked_by_, [&] { return graphs_.run(inputs, micro_batch, bounds); });
}

}  // namespace llm::train
