#pragma once
// Which samples lie together in a row of a batch.

#include <cstdint>
#include <span>
#include <vector>

#include "llm/inputs/samples.h"

namespace llm::inputs {

/// The rows that steps are counted in: a sample each, or several short ones packed together. Cheap
/// to move; may be read by several threads at once.
class Rows {
 public:
  /// A sample each, in the samples' order.
  static Rows one_each(std::int64_t samples);
  /// As few samples' worth of rows as first-fit finds: in an order drawn by `seed`, each sample
  /// goes to the first row that has room for it, else to a new one. Depends on nothing else. A
  /// sample longer than `capacity_tokens` has a row of its own. Cost: O(samples × log samples).
  /// Memory: 16 bytes per sample, 48 while it packs.
  static Rows first_fit(const Samples& samples, std::int64_t capacity_tokens, std::uint64_t seed);

  [[nodiscard]] std::int64_t size() const { return size_; }
  /// The samples of these rows, row after row.
  [[nodiscard]] std::vector<std::int64_t> samples_of(std::span<const std::int64_t> rows) const;

 private:
  std::int64_t size_ = 0;
  std::vector<std::int64_t> begins_;   // [rows + 1] into samples_; empty: a sample each
  std::vector<std::int64_t> samples_;  // row by row
};

}  // namespace llm::inputs
