// Activation checkpointing: a unit's call as one node of autograd's graph, which keeps the inputs
// and computes the rest again in backward.

#include <mutex>
#include <utility>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include "autograd_seam.h"
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

// While it lives, forwards are those that will be repeated.
class CheckpointedScope {
 public:
  explicit CheckpointedScope(Runtime& runtime) : runtime_(runtime) {
    runtime_.begin_checkpointed();
  }
  ~CheckpointedScope() { runtime_.end_checkpointed(); }
  CheckpointedScope(const CheckpointedScope&) = delete;
  CheckpointedScope& operator=(const CheckpointedScope&) = delete;

 private:
  Runtime& runtime_;
};

// Values of buffers. They are written past autograd, which counts versions of what it saved.
using BufferValues = std::vector<std::pair<at::Tensor, at::Tensor>>;

BufferValues values_of(const std::vector<at::Tensor>& buffers) {
  const at::NoGradGuard no_grad;
  BufferValues values;
  for (const at::Tensor& buffer : buffers) {
    values.emplace_back(buffer, buffer.detach().clone());
  }
  return values;
}

void write_back(const BufferValues& values) {
  const at::NoGradGuard no_grad;
  for (const auto& [buffer, value] : values) {
    buffer.variable_data().copy_(value);
  }
}

// What has changed since.
BufferValues changed(const BufferValues& values) {
  BufferValues found;
  for (const auto& [buffer, value] : values) {
    if (!at::equal(buffer.detach(), value)) {
      found.emplace_back(buffer, value);
    }
  }
  return found;
}

// While it lives, buffers hold what they held in the first forward, for a repeated one to read and
// change; then again what they held before.
class BuffersAsTheyWere {
 public:
  explicit BuffersAsTheyWere(const BufferValues& then) {
    std::vector<at::Tensor> buffers;
    for (const auto& [buffer, value] : then) {
      buffers.push_back(buffer);
    }
    now_ = values_of(buffers);
    write_back(then);
  }
  ~BuffersAsTheyWere() { write_back(now_); }
  BuffersAsTheyWere(const BuffersAsTheyWere&) = delete;
  BuffersAsTheyWere& operator=(const BuffersAsTheyWere&) = delete;

 private:
  BufferValues now_;
};

struct CheckpointedCall : torch::CustomClassHolder {
  Recompute body;
  std::shared_ptr<UnitUse> use;
  GeneratorStates generators;
  BufferValues buffers;  ///< those that the forward has changed, as they were before
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
    UnitState& unit = call->use->unit();
    call->generators = generator_states(unit.runtime().mesh().world().device());
    const BufferValues before = values_of(unit.buffers());
    variable_list outputs = [&] {
      const CheckpointedScope scope(unit.runtime());
      return call->body(inputs.vec());
    }();
    call->buffers = changed(before);
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
    unit.pre_backward(call.use.get());
    const bool accumulates = accumulates_everywhere();
    const variable_list inputs = detached(context->get_saved_variables());
    variable_list results = {at::Tensor(), at::Tensor()};
    {
      const BuffersAsTheyWere buffers(call.buffers);  // also while autograd reads what it saved
      const variable_list outputs = recomputed(call, unit.runtime(), inputs);
      const variable_list found = accumulates ? run_backward(outputs, gradients, inputs)
                                              : run_grad(outputs, gradients, inputs);
      results.insert(results.end(), found.begin(), found.end());
    }
    unit.finish_use(call.use.get());
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

  // Gradients of the inputs; those of parameters go their way.
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
