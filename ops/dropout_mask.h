#pragma once
// Which elements dropout drops: a function of counters, so that it depends neither on how a batch
// is cut nor on a generator's state.

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace sherd::ops {

/// The output function of SplitMix64 (Steele et al. 2014, doi:10.1145/2660193.2660195): a bijection
/// of 64 bits that mixes them.
[[nodiscard]] constexpr uint64_t mixed(uint64_t word) {
  word = (word ^ (word >> 30U)) * 0xBF58476D1CE4E5B9;
  word = (word ^ (word >> 27U)) * 0x94D049BB133111EB;
  return word ^ (word >> 31U);
}

/// What decides which elements of a matrix are kept. Element (row, column) is dropped where word
/// `column` of the SplitMix64 stream that starts at row_keys[row] + module_key, as a fraction of
/// 2⁶⁴, is below `probability`.
struct Dropout {
  double probability = 0;  ///< in [0, 1)
  at::Tensor row_keys =
      {};                   ///< int64 [rows], on the matrix's device; undefined: nothing is dropped
  uint64_t module_key = 0;  ///< gives each module its own mask

  /// Whether anything can be dropped.
  [[nodiscard]] bool drops() const { return probability > 0 && row_keys.defined(); }
};

}  // namespace sherd::ops
