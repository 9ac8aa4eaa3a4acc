#pragma once
// Random numbers and buffers as they were, for a call that is computed once more.

#include <utility>
#include <vector>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

namespace sherd::detail {

/// States of the generators that dropout draws from: the host's, and the device's.
using GeneratorStates = std::vector<std::pair<at::Generator, at::Tensor>>;
[[nodiscard]] GeneratorStates generator_states(c10::Device device);

/// While it lives, generators draw from `then` on; then again from where they were.
class GeneratorsAsBefore {
 public:
  explicit GeneratorsAsBefore(const GeneratorStates& then);
  ~GeneratorsAsBefore();
  GeneratorsAsBefore(const GeneratorsAsBefore&) = delete;
  GeneratorsAsBefore& operator=(const GeneratorsAsBefore&) = delete;

 private:
  GeneratorStates now_;
};

/// Buffers with copies of their values. They are written past autograd, which counts versions of
/// what it saved.
using BufferValues = std::vector<std::pair<at::Tensor, at::Tensor>>;
[[nodiscard]] BufferValues values_of(const std::vector<at::Tensor>& buffers);
/// Those whose values may have changed: on the CPU those that have, on other devices all, without a
/// wait of the host.
[[nodiscard]] BufferValues perhaps_changed_since(const BufferValues& values);

/// While it lives, buffers hold `then`, for a repeated forward to read and change; then again what
/// they held before.
class BuffersAsBefore {
 public:
  explicit BuffersAsBefore(const BufferValues& then);
  ~BuffersAsBefore();
  BuffersAsBefore(const BuffersAsBefore&) = delete;
  BuffersAsBefore& operator=(const BuffersAsBefore&) = delete;

 private:
  BufferValues now_;
};

}  // namespace sherd::detail
