// Activation checkpointing: a unit's call as one node of autograd's graph, which keeps the inputs
// and recomputes the rest in backward.

#include <algorithm>
#include <mutex>
#include <string>
#include <tuple>
#include <utility>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <c10/util/ScopeExit.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include "sherd/error.h"
#include "sherd/unit.h"
#include "step/step.h"
#include "storage/device.h"

namespace sherd::detail {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

GeneratorStates states_of(const std::vector<at::Generator>& generators) {
  GeneratorStates states;
  for (at::Generator generator : generators) {
    const std::lock_guard lock(generator.mutex());
    states.emplace_back(generator, generator.get_state());
  }
  return states;
}

void restore(const GeneratorStates& states) {
  for (const auto& [generator, state] : states) {
    at::Generator held = generator;
    const std::lock_guard lock(held.mutex());
    held.set_state(state);
  }
}

// Buffers with copies of their values. They are written past autograd, which counts versions of
// what it saved.
using BufferValues = std::vector<std::pair<at::Tensor, at::Tensor>>;

BufferValues states_of(const std::vector<at::Tensor>& buffers) {
  const at::NoGradGuard no_grad;
  BufferValues values;
  for (const at::Tensor& buffer : buffers) {
    values.emplace_back(buffer, buffer.detach().clone());
  }
  return values;
}

void restore(const BufferValues& values) {
  const at::NoGradGuard no_grad;
  for (const auto& [buffer, value] : values) {
    buffer.variable_data().copy_(value);
  }
}

// Buffers whose values may have changed: on the CPU those that have, on other devices all. There a
// comparison would make the host wait for each buffer, and a graph could not hold it. Versions do
// not help either: batch normalisation changes running statistics and counts none.
BufferValues perhaps_changed_since(const BufferValues& values) {
  BufferValues found;
  for (const auto& [buffer, value] : values) {
    if (!buffer.is_cpu() || !at::equal(buffer.detach(), value)) {
      found.emplace_back(buffer, value);
    }
  }
  return found;
}

// While the result lives, generators or buffers have their states of before, for a repeated forward
// to use and change; then again the states that they had.
template <class Owner>
[[nodiscard]] auto as_before(const std::vector<std::pair<Owner, at::Tensor>>& before) {
  std::vector<Owner> owners;
  for (const auto& [owner, state] : before) {
    owners.push_back(owner);
  }
  auto now = states_of(owners);
  restore(before);
  return c10::make_scope_exit([now = std::move(now)] { restore(now); });
}

/// Autocast of this thread: of the CPU and of a unit's device.
struct AutocastState {
  bool uses_cache = true;
  std::vector<std::tuple<c10::DeviceType, bool, at::ScalarType>> of_devices = {};
};

AutocastState autocast_state(c10::Device device) {
  AutocastState state{at::autocast::is_autocast_cache_enabled()};
  for (const c10::DeviceType type : {c10::DeviceType::CPU, device.type()}) {
    if (at::autocast::is_autocast_available(type)) {
      state.of_devices.emplace_back(type, at::autocast::is_autocast_enabled(type),
                                    at::autocast::get_autocast_dtype(type));
    }
  }
  return state;
}

void restore(const AutocastState& state) {
  at::autocast::set_autocast_cache_enabled(state.uses_cache);
  for (const auto& [type, is_enabled, dtype] : state.of_devices) {
    at::autocast::set_autocast_enabled(type, is_enabled);
    at::autocast::set_autocast_dtype(type, dtype);
  }
}

struct CheckpointedCall : torch::CustomClassHolder {
  Recompute body;
  std::shared_ptr<UnitUse> use;
  GeneratorStates generators;
  AutocastState autocast;
  BufferValues buffers;  ///< those that the forward may have changed, as they were before
};

// While the result lives, autocast is as it was in the forward.
[[nodiscard]] auto as_in_forward(const CheckpointedCall& call) {
  const AutocastState now = autocast_state(call.use->unit.device());
  restore(call.autocast);
  return c10::make_scope_exit([now] { restore(now); });
}

struct Checkpoint : torch::autograd::Function<Checkpoint> {
  // `dummy` requires gradients, so that a call without inputs that do (an embedding) has a
  // backward.
  static variable_list forward(AutogradContext* context,
                               const c10::intrusive_ptr<CheckpointedCall>& call,
                               const at::Tensor& /*dummy*/, at::TensorList inputs) {
    context->saved_data["call"] = c10::IValue::make_capsule(call);
    context->save_for_backward(inputs.vec());
    context->set_materialize_grads(false);
    const UnitState& unit = call->use->unit;
    call->generators = generator_states(unit.device());
    call->autocast = autocast_state(unit.device());
    call->autocast.uses_cache = false;  // what is cast here has no gradient, and is cast again
    Step& step = *call->use->step;
    const BufferValues before = step.model().collectives.run(
        Work::Local, "copy of buffers", unit.name(), [&] { return states_of(unit.buffers()); });
    variable_list outputs = [&] {
      const auto scope = step.forwards_to_be_repeated();
      const auto autocast = as_in_forward(*call);
      return call->body(inputs.vec());
    }();
    call->buffers = perhaps_changed_since(before);
    variable_list indices;
    for (at::Tensor& output : outputs) {
      // Another tensor over the same memory: a parameter or buffer that is returned must not become
      // a result of this node, and what was a view may be written in place.
      output = output.defined() ? output.detach() : output;
      if (output.defined() && !output.is_floating_point() && !output.is_complex()) {
        indices.push_back(output);
      }
    }
    context->mark_non_differentiable(indices);
    return outputs;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto capsule = context->saved_data["call"].toCapsule();
    auto& call = static_cast<CheckpointedCall&>(*capsule);
    Step& step = *call.use->step;
    step.pre_backward(*call.use);
    const bool accumulates = accumulates_everywhere();
    const variable_list inputs = detached(context->get_saved_variables());
    variable_list results = {at::Tensor(), at::Tensor()};
    {
      const auto buffers = as_before(call.buffers);  // also while autograd reads what it saved
      const variable_list outputs = recomputed(call, inputs);
      const variable_list found = gradients_of(inputs, outputs, gradients, accumulates);
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
    const auto scope = call.use->step->repeated_forwards();
    const auto generators = as_before(call.generators);
    const auto autocast = as_in_forward(call);
    return call.body(inputs);
  }

  // With `accumulates`, gradients of parameters accumulate as usual; else nothing is computed for
  // them.
  static variable_list gradients_of(const variable_list& inputs, const variable_list& outputs,
                                    const variable_list& gradients, bool accumulates) {
    variable_list roots;
    variable_list of_roots;
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (outputs[i].defined() && outputs[i].requires_grad() && gradients[i].defined()) {
        roots.push_back(outputs[i]);
        of_roots.push_back(gradients[i]);
      }
    }
    std::vector<size_t> places;
    variable_list wanted;
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (inputs[i].defined() && inputs[i].requires_grad()) {
        places.push_back(i);
        wanted.push_back(inputs[i]);
      }
    }
    variable_list found(inputs.size());
    if (roots.empty() || (wanted.empty() && !accumulates)) {
      return found;
    }
    variable_list of_wanted;
    if (accumulates) {
      torch::autograd::backward(roots, of_roots);
      std::ranges::transform(wanted, std::back_inserter(of_wanted),
                             [](const at::Tensor& input) { return input.grad(); });
    } else {
      of_wanted = torch::autograd::grad(roots, wanted, of_roots, /*retain_graph=*/false,
                                        /*create_graph=*/false, /*allow_unused=*/true);
    }
    for (size_t i = 0; i < places.size(); ++i) {
      found[places[i]] = of_wanted[i];
    }
    return found;
  }
};

TensorList places_of(std::vector<at::Tensor>& tensors) {
  TensorList places;
  collect_tensors(tensors, places);
  return places;
}

}  // namespace

GeneratorStates generator_states(c10::Device device) {
  std::vector<at::Generator> generators = {at::detail::getDefaultCPUGenerator()};
  // A graph draws on by itself from where the device's generator is.
  if (!device.is_cpu() && !device.is_meta() && capture_of(device) == 0) {
    generators.push_back(at::globalContext().defaultGenerator(device));
  }
  return states_of(generators);
}

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

void refuse_written_argument(const UnitState& unit) {
  throw Error(ExitCode::Usage,
              "[forward] unit '" + unit.name() +
                  "' is checkpointed and wrote a tensor of an argument, which no gradient would "
                  "reach: return the tensor, or leave checkpoint_activations off for it.");
}

// Or in a unit inside it, whose name begins with its own.
bool ForwardScope::is_trained_inside() const {
  const auto is_trained = [](const UnitParameter& of) { return of.tensor.requires_grad(); };
  const std::string inside = unit_.state->name() + ".";
  const auto& units = unit_.step->model().units;
  return std::ranges::any_of(units, [&](const auto& unit) {
    const bool is_inside =
        unit_.state->is_root() || unit.get() == unit_.state || unit->name().starts_with(inside);
    return is_inside && std::ranges::any_of(unit->parameters(), is_trained);
  });
}

std::vector<at::Tensor> ForwardScope::checkpoint(Recompute body,
                                                 const std::vector<at::Tensor>& inputs) {
  const bool any_requires_grad = std::ranges::any_of(
      inputs, [](const at::Tensor& input) { return input.defined() && input.requires_grad(); });
  if (!any_requires_grad && !is_trained_inside()) {
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
    const auto saving = save_on_host(*call->use);
    return Checkpoint::apply(call, dummy, at::TensorList(inputs));
  }();
  cast_outputs(places_of(outputs));
  end(call->use.get());
  return outputs;
}

}  // namespace sherd::detail
