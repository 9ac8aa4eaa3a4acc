#include "step/graph_task.h"

#include <algorithm>
#include <unordered_map>

#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

namespace sherd::detail {

namespace {

using NodesToRun = std::unordered_map<torch::autograd::Node*, torch::autograd::GraphTask::ExecInfo>;

// Null where it runs all of them, or there is none.
const NodesToRun* nodes_to_run() {
  const NodesToRun* nodes = torch::autograd::get_current_graph_task_exec_info();
  return nodes == nullptr || nodes->empty() ? nullptr : nodes;
}

bool accumulates_into(const at::Tensor& parameter, const NodesToRun& nodes) {
  const auto node = torch::autograd::impl::try_get_grad_accumulator(parameter);
  const auto found = nodes.find(node.get());
  return found != nodes.end() && found->second.needed_;
}

}  // namespace

bool inside_backward() {
  return torch::autograd::get_current_graph_task_id() != -1;
}

bool accumulates_gradient(const at::Tensor& parameter) {
  const NodesToRun* nodes = nodes_to_run();
  return nodes == nullptr || accumulates_into(parameter, *nodes);
}

bool accumulates_gradients(const UnitState& unit) {
  const NodesToRun* nodes = nodes_to_run();
  const auto& parameters = unit.parameters();
  return nodes == nullptr ||
         std::any_of(parameters.begin(), parameters.end(), [&](const UnitParameter& parameter) {
           return accumulates_into(parameter.tensor, *nodes);
         });
}

bool accumulates_everywhere() {
  return nodes_to_run() == nullptr;
}

}  // namespace sherd::detail
