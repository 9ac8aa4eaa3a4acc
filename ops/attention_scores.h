#pragma once
// Which scores attention computes, beside ALiBi's slopes.

#include <algorithm>
#include <cstdint>

namespace sherd::ops {

/// How the product of a query and a key becomes a score, and which keys a query sees. The default
/// is that of most models.
struct AttentionScores {
  double scale = 0;         ///< what products are multiplied by; 0: 1 ÷ √H
  std::int64_t window = 0;  ///< tokens that a query sees, itself and those before it; 0: all
  double soft_cap = 0;      ///< c: scaled scores become c × tanh(score ÷ c); 0: no cap

  /// The first position that the query at `position` sees.
  [[nodiscard]] std::int64_t first_seen(std::int64_t position) const {
    return window == 0 ? 0 : std::max<std::int64_t>(position - window + 1, 0);
  }
};

/// The pairs of a query and a key that it sees in a document of `length` tokens.
[[nodiscard]] inline std::int64_t seen_pairs(std::int64_t length, std::int64_t window) {
  const std::int64_t hidden = window == 0 ? 0 : std::max<std::int64_t>(length - window, 0);
  return length * (length + 1) / 2 - hidden * (hidden + 1) / 2;
}

}  // namespace sherd::ops
