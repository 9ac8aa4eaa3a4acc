#pragma once
// The layout of a batch: documents side by side on one axis of tokens, without padding.

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>

namespace sherd::ops {

/// Where documents lie on an axis of tokens: document d is tokens [begin(d), end(d)). Each has at
/// least one token, there is no gap between them. Cheap to copy; held in CPU memory.
/// PyTorch: `cu_seqlens` of flash-attention's functions for sequences of varying length.
class Documents {
 public:
  /// No document.
  Documents() : Documents(std::vector<int64_t>{0}) {}
  /// `bounds`: where each begins, and where the last one ends. Throws c10::Error unless they begin
  /// with 0 and ascend.
  explicit Documents(std::vector<int64_t> bounds);
  /// One after the other, of these lengths.
  [[nodiscard]] static Documents of_lengths(std::span<const int64_t> lengths);
  /// `count` of the same length.
  [[nodiscard]] static Documents of_equal_length(int64_t count, int64_t length);

  [[nodiscard]] int64_t count() const { return static_cast<int64_t>(bounds_->size()) - 1; }
  /// Of all documents.
  [[nodiscard]] int64_t tokens() const { return bounds_->back(); }
  [[nodiscard]] int64_t begin(int64_t document) const { return (*bounds_)[index(document)]; }
  [[nodiscard]] int64_t end(int64_t document) const { return (*bounds_)[index(document) + 1]; }
  [[nodiscard]] int64_t length(int64_t document) const { return end(document) - begin(document); }
  /// Tokens of the longest; 0 without documents.
  [[nodiscard]] int64_t longest() const;
  /// Whether all have the same length; also without documents.
  [[nodiscard]] bool have_equal_lengths() const { return count() * longest() == tokens(); }

  /// As the constructor takes them: [count + 1].
  [[nodiscard]] const std::vector<int64_t>& bounds() const { return *bounds_; }
  /// The same as int32 on a device: copied there when they are first asked for, without a wait, for
  /// all copies of these documents and as long as one lives; of fewer than 2³¹ tokens. Those who
  /// ask use them in the order of one stream. On any thread.
  [[nodiscard]] at::Tensor bounds_on(at::Device device) const;
  /// The position of each token in its document, from 0: int64 [tokens] in CPU memory.
  [[nodiscard]] at::Tensor positions() const;
  /// The same on a device, as bounds_on().
  [[nodiscard]] at::Tensor positions_on(at::Device device) const;
  /// The first and the last token of each document: int64 [count] in CPU memory.
  [[nodiscard]] at::Tensor first_tokens() const;
  [[nodiscard]] at::Tensor last_tokens() const;

 private:
  class OnDevice;
  static size_t index(int64_t document) { return static_cast<size_t>(document); }

  std::shared_ptr<const std::vector<int64_t>> bounds_;  // [count + 1]
  std::shared_ptr<OnDevice> on_device_;
};

}  // namespace sherd::ops
