#include "step/replay.h"

#include <mutex>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>

#include "storage/device_graph.h"

namespace sherd::detail {

namespace {

void restore(const GeneratorStates& states) {
  for (const auto& [generator, state] : states) {
    at::Generator held = generator;
    const std::lock_guard lock(held.mutex());
    held.set_state(state);
  }
}

void write_back(const BufferValues& values) {
  const at::NoGradGuard no_grad;
  for (const auto& [buffer, value] : values) {
    buffer.variable_data().copy_(value);
  }
}

}  // namespace

GeneratorStates generator_states(c10::Device device) {
  GeneratorStates states;
  std::vector<at::Generator> generators = {at::detail::getDefaultCPUGenerator()};
  // A graph draws on by itself from where the device's generator is.
  if (!device.is_cpu() && !device.is_meta() && capture_of(device) == 0) {
    generators.push_back(at::globalContext().defaultGenerator(device));
  }
  for (at::Generator& generator : generators) {
    const std::lock_guard lock(generator.mutex());
    states.emplace_back(generator, generator.get_state());
  }
  return states;
}

GeneratorsAsBefore::GeneratorsAsBefore(const GeneratorStates& then) {
  for (const auto& [generator, state] : then) {
    at::Generator held = generator;
    const std::lock_guard lock(held.mutex());
    now_.emplace_back(held, held.get_state());
  }
  restore(then);
}

GeneratorsAsBefore::~GeneratorsAsBefore() {
  restore(now_);
}

BufferValues values_of(const std::vector<at::Tensor>& buffers) {
  const at::NoGradGuard no_grad;
  BufferValues values;
  for (const at::Tensor& buffer : buffers) {
    values.emplace_back(buffer, buffer.detach().clone());
  }
  return values;
}

// On other devices a comparison would make the host wait for each buffer, and a graph could not
// hold it. Versions do not tell either: batch normalisation changes running statistics and counts
// none.
BufferValues perhaps_changed_since(const BufferValues& values) {
  BufferValues found;
  for (const auto& [buffer, value] : values) {
    if (!buffer.is_cpu() || !at::equal(buffer.detach(), value)) {
      found.emplace_back(buffer, value);
    }
  }
  return found;
}

BuffersAsBefore::BuffersAsBefore(const BufferValues& then) {
  std::vector<at::Tensor> buffers;
  for (const auto& [buffer, value] : then) {
    buffers.push_back(buffer);
  }
  now_ = values_of(buffers);
  write_back(then);
}

BuffersAsBefore::~BuffersAsBefore() {
  write_back(now_);
}

}  // namespace sherd::detail
