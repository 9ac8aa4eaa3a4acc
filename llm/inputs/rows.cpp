#include "llm/inputs/rows.h"

#include <algorithm>
#include <bit>

#include "llm/inputs/sampler.h"

namespace llm::inputs {
namespace {

// Not the order of an epoch of this seed, whose first batches these would else be.
constexpr std::int64_t kPackingOrder = -2;

// The room left in each of `rows` rows, as a tree whose inner nodes hold the most of their two.
class Room {
 public:
  Room(std::size_t rows, std::int64_t capacity)
      : leaves_(std::bit_ceil(std::max<std::size_t>(rows, 1))), most_(2 * leaves_, capacity) {}

  /// Takes `tokens` from the first row that has as many left, and returns which. One must have.
  std::size_t take(std::int64_t tokens) {
    std::size_t node = 1;
    while (node < leaves_) {
      node = 2 * node + (most_[2 * node] < tokens ? 1 : 0);
    }
    const std::size_t row = node - leaves_;
    most_[node] -= tokens;
    while (node > 1) {
      node /= 2;
      most_[node] = std::max(most_[2 * node], most_[2 * node + 1]);
    }
    return row;
  }

 private:
  std::size_t leaves_;
  std::vector<std::int64_t> most_;
};

}  // namespace

Rows Rows::one_each(std::int64_t samples) {
  Rows rows;
  rows.size_ = samples;
  return rows;
}

Rows Rows::first_fit(const Samples& samples, std::int64_t capacity_tokens, std::uint64_t seed) {
  const auto count = static_cast<std::int64_t>(samples.size());
  const std::vector<std::int64_t> order = epoch_order(count, seed, kPackingOrder);
  std::vector<std::vector<std::int64_t>> packed;
  Room room(samples.size(), capacity_tokens);
  for (const std::int64_t sample : order) {
    const std::int64_t tokens = samples.length(static_cast<std::size_t>(sample));
    const std::size_t row = room.take(std::min(tokens, capacity_tokens));
    packed.resize(std::max(packed.size(), row + 1));
    packed[row].push_back(sample);
  }
  Rows rows;
  rows.size_ = static_cast<std::int64_t>(packed.size());
  rows.begins_ = {0};
  for (const std::vector<std::int64_t>& row : packed) {
    rows.samples_.insert(rows.samples_.end(), row.begin(), row.end());
    rows.begins_.push_back(static_cast<std::int64_t>(rows.samples_.size()));
  }
  return rows;
}

std::vector<std::int64_t> Rows::samples_of(std::span<const std::int64_t> rows) const {
  if (begins_.empty()) {
    return {rows.begin(), rows.end()};
  }
  std::vector<std::int64_t> samples;
  for (const std::int64_t row : rows) {
    const auto begin = samples_.begin() + begins_[static_cast<std::size_t>(row)];
    const auto end = samples_.begin() + begins_[static_cast<std::size_t>(row) + 1];
    samples.insert(samples.end(), begin, end);
  }
  return samples;
}

}  // namespace llm::inputs
