// Activation checkpointing: a unit's call as one node of autograd's graph, which keeps the inputs
// and recomputes the rest in backward.

#include <algorithm>
#include <string>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include "sherd/error.h"
#include "sherd/unit.h"
#include "step/graph_task.h"
#include "step/replay.h"
#include "step/saved_tensors.h"
#include "step/step.h"

namespace sherd::detail {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct CheckpointedCall : torch::CustomClassHolder {
  Recompute body;
  std::shared_ptr<UnitUse> use;
  GeneratorStates generators;
  BufferValues buffers;  ///< those that the forward may have changed, as they were before
};

struct Checkpoint : torch::autograd::Function<Checkpoint> {
  // `dummy` requires gradients, so that a call without inputs that do (an embedding) has a
  // backward.
  static variable_list forward(AutogradContext* context,
                               const c10::intrusive_ptr<CheckpointedCall>& call,
                               const at::Tensor& /*dummy*/, at::TensorList inputs) {
    context->saved_data["call"] = c10::IValue::make_capsule(call);
    context->save_for_backward(inputs.vec());
    context->set_materialize_grads(false);
    const UnitState& unit = call->use->unit();
    call->generators = generator_states(unit.device());
    Collectives& collectives = call->use->step()->model().collectives;
    const BufferValues before = collectives.run(Work::Local, "copy of buffers", unit.name(),
                                                [&] { return values_of(unit.buffers()); });
    variable_list outputs = [&] {
      const auto scope = call->use->step()->forwards_to_be_repeated();
      return call->body(inputs.vec());
    }();
    call->buffers = perhaps_changed_since(before);
    variable_list indices;
    for (const at::Tensor& output : outputs) {
      if (output.defined() && !output.is_floating_point()) {
        indices.push_back(output);
      }
    }
    context->mark_non_differentiable(indices);
    return outputs;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto capsule = context->saved_data["call"].toCapsule();
    auto& call = static_cast<CheckpointedCall&>(*capsule);
    Step& step = *call.use->step();
    step.pre_backward(*call.use);
    const bool accumulates = accumulates_everywhere();
    const variable_list inputs = detached(context->get_saved_variables());
    variable_list results = {at::Tensor(), at::Tensor()};
    {
      const BuffersAsBefore buffers(call.buffers);  // also while autograd reads what it saved
      const variable_list outputs = recomputed(call, inputs);
      const variable_list found = accumulates ? run_backward(outputs, gradients, inputs)
                                              : run_grad(outputs, gradients, inputs);
      results.insert(results.end(), found.begin(), found.end());
    }
    step.post_backward(*call.use);
    return results;
  }

 private:
  static variable_list detached(const variable_list& saved) {
    variable_list inputs;
    for (const at::Tensor& input : saved) {
      inputs.push_back(input.defined() ? input.detach().set_requires_grad(input.requires_grad())
                                       : at::Tensor());
    }
    return inputs;
  }

  static variable_list recomputed(CheckpointedCall& call, const variable_list& inputs) {
    const at::AutoGradMode with_gradients(true);
    const auto scope = call.use->step()->repeated_forwards();
    const GeneratorsAsBefore generators(call.generators);
    return call.body(inputs);
  }

  struct Roots {
    variable_list outputs;
    variable_list gradients;
  };
  static Roots roots_of(const variable_list& outputs, const variable_list& gradients) {
    Roots roots;
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (outputs[i].defined() && outputs[i].requires_grad() && gradients[i].defined()) {
        roots.outputs.push_back(outputs[i]);
        roots.gradients.push_back(gradients[i]);
      }
    }
    return roots;
  }

  // Returns gradients of the inputs; those of parameters accumulate as usual.
  static variable_list run_backward(const variable_list& outputs, const variable_list& gradients,
                                    const variable_list& inputs) {
    const Roots roots = roots_of(outputs, gradients);
    if (!roots.outputs.empty()) {
      torch::autograd::backward(roots.outputs, roots.gradients);
    }
    variable_list found;
    for (const at::Tensor& input : inputs) {
      found.push_back(input.defined() ? input.grad() : at::Tensor());
    }
    return found;
  }

  // Gradients of the inputs alone.
  static variable_list run_grad(const variable_list& outputs, const variable_list& gradients,
                                const variable_list& inputs) {
    const Roots roots = roots_of(outputs, gradients);
    variable_list wanted;
    for (const at::Tensor& input : inputs) {
      if (input.defined() && input.requires_grad()) {
        wanted.push_back(input);
      }
    }
    variable_list found(inputs.size());
    if (roots.outputs.empty() || wanted.empty()) {
      return found;
    }
    const variable_list of_wanted =
        torch::autograd::grad(roots.outputs, wanted, roots.gradients, /*retain_graph=*/false,
                              /*create_graph=*/false, /*allow_unused=*/true);
    auto next = of_wanted.begin();
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (inputs[i].defined() && inputs[i].requires_grad()) {
        found[i] = *next++;
      }
    }
    return found;
  }
};

}  // namespace

bool checkpoints_activations(const UnitState& unit) {
  return unit.settings().checkpoint_activations && at::GradMode::is_enabled();
}

void refuse_to_checkpoint(const UnitState& unit) {
  throw Error(
      ExitCode::Usage,
      "[forward] the activations of unit '" + unit.name() +
          "' cannot be checkpointed: it takes an argument that cannot be copied, or returns "
          "none. Pass it by value or pointer, or leave checkpoint_activations off for it.");
}

// Or in a unit inside it, whose name begins with its own.
bool ForwardScope::is_trained_inside() const {
  const std::string inside = unit_.state->name() + ".";
  const auto& units = unit_.step->model().units;
  return std::any_of(units.begin(), units.end(), [&](const auto& unit) {
    const bool is_inside =
        unit_.state->is_root() || unit.get() == unit_.state || unit->name().starts_with(inside);
    return is_inside && std::any_of(unit->parameters().begin(), unit->parameters().end(),
                                    [](const UnitParameter& parameter) {
                                      return parameter.tensor.requires_grad();
                                    });
  });
}

namespace {

TensorList places_of(std::vector<at::Tensor>& tensors) {
  TensorList places;
  for (at::Tensor& tensor : tensors) {
    places.push_back(&tensor);
  }
  return places;
}

bool any_requires_grad(const std::vector<at::Tensor>& tensors) {
  return std::any_of(tensors.begin(), tensors.end(), [](const at::Tensor& tensor) {
    return tensor.defined() && tensor.requires_grad();
  });
}

}  // namespace

std::vector<at::Tensor> ForwardScope::checkpoint(Recompute body,
                                                 const std::vector<at::Tensor>& inputs) {
  if (!any_requires_grad(inputs) && !is_trained_inside()) {
    std::vector<at::Tensor> held = inputs;
    enter(places_of(held));
    std::vector<at::Tensor> outputs = body(held);
    leave(places_of(outputs));
    return outputs;
  }
  auto call = c10::make_intrusive<CheckpointedCall>();
  call->body = std::move(body);
  call->use = std::make_shared<UnitUse>(unit_.step, *unit_.state);
  const at::Tensor dummy = at::empty({0}).set_requires_grad(true);
  std::vector<at::Tensor> outputs = [&] {
    const SavingScope saving(*call->use);
    return Checkpoint::apply(call, dummy, at::TensorList(inputs));
  }();
  cast_outputs(places_of(outputs));
  end(call->use.get());
  return outputs;
}

}  // namespace sherd::detail
