#pragma once
// What a rank holds of a parameter, however it lies.

#include <cstdint>
#include <utility>

#include <ATen/core/Tensor.h>

namespace sherd::detail {

/// A flat range of values [n]: a tensor, or fp32 values in two halves (see [Note: Masters in two
/// halves] in kernels.h). A view: it is written where it lies.
class ShardValues {
 public:
  ShardValues() = default;
  ShardValues(at::Tensor values)  // NOLINT(google-explicit-constructor): most values are tensors
      : values_(std::move(values)) {}
  /// fp32 values whose rounding to bf16 is `travelling`; `low` int16.
  ShardValues(at::Tensor travelling, at::Tensor low)
      : values_(std::move(travelling)), low_(std::move(low)) {}

  [[nodiscard]] bool is_split() const { return low_.defined(); }
  [[nodiscard]] int64_t numel() const { return values_.numel(); }
  /// Of the values, not of the halves.
  [[nodiscard]] c10::ScalarType dtype() const {
    return is_split() ? c10::kFloat : values_.scalar_type();
  }
  [[nodiscard]] bool is_floating_point() const { return c10::isFloatingType(dtype()); }
  [[nodiscard]] ShardValues narrow(int64_t start, int64_t numel) const;

  /// The tensor that they are; of halves a new one, which is not written back.
  [[nodiscard]] at::Tensor read() const;
  /// Where they lie as a tensor; undefined for halves.
  [[nodiscard]] at::Tensor in_place() const { return is_split() ? at::Tensor() : values_; }
  /// Converts from any dtype of the same kind.
  void write(const at::Tensor& values) const;
  void fill(double value) const;

 private:
  at::Tensor values_;
  at::Tensor low_;
};

}  // namespace sherd::detail
