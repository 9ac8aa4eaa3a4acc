#pragma once
// What a rank holds of a parameter, however it lies.

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include <ATen/core/Tensor.h>

namespace sherd::detail {

/// A flat range of values [n]: a tensor, or fp32 values in two halves (see [Note: Masters in two
/// halves] in kernels.h). A view: it is written where it lies.
class ShardValues {
 public:
  /// Storage::use() of values that are not resident.
  using Use = std::function<std::shared_ptr<void>(const at::Tensor& view, bool writes)>;

  ShardValues() = default;
  ShardValues(at::Tensor values)  // NOLINT(google-explicit-constructor): most values are tensors
      : values_(std::move(values)) {}
  /// fp32 values whose rounding to bf16 is `travelling`; `low` int16, there or on the host.
  ShardValues(at::Tensor travelling, at::Tensor low)
      : values_(std::move(travelling)), low_(std::move(low)) {}

  /// The same, which may be used only within `use`, and the low halves within `use_low`; empty:
  /// always.
  [[nodiscard]] ShardValues resting(Use use, Use use_low = {}) const {
    ShardValues values = *this;
    values.use_ = std::move(use);
    values.use_low_ = std::move(use_low);
    return values;
  }
  /// Whether they may be used only in parts, by for_each_stretch().
  [[nodiscard]] bool rests() const { return use_ || use_low_; }
  /// The tensor; of halves, the one that travels.
  [[nodiscard]] const at::Tensor& tensor() const { return values_; }
  /// Of halves, the other.
  [[nodiscard]] const at::Tensor& low() const { return low_; }

  [[nodiscard]] bool is_split() const { return low_.defined(); }
  [[nodiscard]] int64_t numel() const { return values_.numel(); }
  /// Of the values, not of the halves.
  [[nodiscard]] c10::ScalarType dtype() const {
    return is_split() ? c10::kFloat : values_.scalar_type();
  }
  [[nodiscard]] bool is_floating_point() const { return c10::isFloatingType(dtype()); }
  [[nodiscard]] ShardValues narrow(int64_t start, int64_t numel) const;

  /// The tensor that they are; of halves, and of what rests elsewhere, a new one, which is not
  /// written back.
  [[nodiscard]] at::Tensor read() const;
  /// Where they lie as a tensor; undefined where read() makes one.
  [[nodiscard]] at::Tensor in_place() const {
    return is_split() || rests() ? at::Tensor() : values_;
  }
  /// Converts from any dtype of the same kind.
  void write(const at::Tensor& values) const;
  void fill(double value) const;

  /// Calls fn(first, part) for parts in order, each in memory during the call: all values at once
  /// where they are in memory anyway.
  template <class Fn>
  void for_each_stretch(bool writes, const Fn& fn) const {
    if (!rests()) {
      return fn(int64_t{0}, *this);
    }
    for (int64_t first = 0; first < numel(); first += kStretch) {
      const ShardValues part = narrow(first, std::min(kStretch, numel() - first)).resting({});
      const auto in_use = use_ ? use_(part.values_, writes) : nullptr;
      const auto low_in_use = use_low_ ? use_low_(part.low_, writes) : nullptr;
      fn(first, part);
    }
  }

 private:
  static constexpr int64_t kStretch = int64_t{1} << 20;

  at::Tensor values_;
  at::Tensor low_;
  Use use_;
  Use use_low_;
};

}  // namespace sherd::detail
