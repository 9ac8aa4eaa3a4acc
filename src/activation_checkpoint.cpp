// Activation checkpointing: a unit's call as one node of autograd's graph, which keeps the inputs
// and computes the rest again in backward.

#include <mutex>
#include <utility>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include "runtime.h"
#include "sherd/unit.h"

namespace sherd::detail {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// The states of the generators that dropout draws from: the host's, and the device's.
using GeneratorStates = std::vector<std::pair<at::Generator, at::Tensor>>;

GeneratorStates generator_states(c10::Device device) {
  GeneratorStates states;
  std::vector<at::Generator> generators = {at::detail::getDefaultCPUGenerator()};
  if (!device.is_cpu()) {
    generators.push_back(at::globalContext().defaultGenerator(device));
  }
  for (at::Generator& generator : generators) {
    const std::lock_guard lock(generator.mutex());
    states.emplace_back(generator, generator.get_state());
  }
  return states;
}

void restore(GeneratorStates& states) {
  for (auto& [generator, state] : states) {
    const std::lock_guard lock(generator.mutex());
    generator.set_state(state);
  }
}

// While it lives, forwards belong to a recomputation that draws the same random numbers.
class RecomputeScope {
 public:
  RecomputeScope(Runtime& runtime, GeneratorStates& then)
      : runtime_(runtime), now_(generator_states(runtime.mesh().world().device())) {
    runtime_.begin_recompute();
    restore(then);
  }
  ~RecomputeScope() {
    restore(now_);
    runtime_.end_recompute();
  }
  RecomputeScope(const RecomputeScope&) = delete;
  RecomputeScope& operator=(const RecomputeScope&) = delete;

 private:
  Runtime& runtime_;
  GeneratorStates now_;
};

struct CheckpointedCall : torch::CustomClassHolder {
  Recompute body;
  std::shared_ptr<UnitUse> use;
  GeneratorStates generators;
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
    call->generators = generator_states(call->use->unit().runtime().mesh().world().device());
    variable_list outputs = call->body(inputs.vec());
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
    UnitState& unit = call.use->unit();
    unit.pre_backward();
    variable_list inputs = detached(context->get_saved_variables());
    run_backward(recomputed(call, unit.runtime(), inputs), gradients);
    unit.finish_use(call.use.get());
    variable_list results = {at::Tensor(), at::Tensor()};
    for (const at::Tensor& input : inputs) {
      results.push_back(input.defined() ? input.grad() : at::Tensor());
    }
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

  static variable_list recomputed(CheckpointedCall& call, Runtime& runtime,
                                  const variable_list& inputs) {
    const at::AutoGradMode with_gradients(true);
    const RecomputeScope scope(runtime, call.generators);
    return call.body(inputs);
  }

  static void run_backward(const variable_list& outputs, const variable_list& gradients) {
    variable_list roots;
    variable_list root_gradients;
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (outputs[i].defined() && outputs[i].requires_grad() && gradients[i].defined()) {
        roots.push_back(outputs[i]);
        root_gradients.push_back(gradients[i]);
      }
    }
    if (!roots.empty()) {
      torch::autograd::backward(roots, root_gradients);
    }
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

std::vector<at::Tensor> ForwardScope::checkpoint(Recompute body,
                                                 const std::vector<at::Tensor>& inputs) {
  auto call = c10::make_intrusive<CheckpointedCall>();
  call->body = std::move(body);
  call->use = std::make_shared<UnitUse>(unit_.runtime().shared_from_this(), unit_);
  const at::Tensor dummy = at::empty({0}).set_requires_grad(true);
  std::vector<at::Tensor> outputs = Checkpoint::apply(call, dummy, at::TensorList(inputs));
  TensorList places;
  for (at::Tensor& output : outputs) {
    places.push_back(&output);
  }
  cast_outputs(places);
  left_ = true;
  unit_.post_forward(call->use.get());
  return outputs;
}

}  // namespace sherd::detail
