#pragma once
// Random numbers that depend on seed, name and index alone, so that every cut of a tensor draws the
// same ones.

#include <array>
#include <cstdint>
#include <string_view>

namespace sherd::detail {

/// Philox4x32 with 10 rounds.  Paper: "Parallel random numbers: as easy as 1, 2, 3",
/// doi:10.1145/2063384.2063405.
[[nodiscard]] std::array<uint32_t, 4> philox4x32_10(std::array<uint32_t, 4> counter,
                                                    std::array<uint32_t, 2> key);

/// FNV-1a of 64 bits: the same on every machine, unlike std::hash.
[[nodiscard]] uint64_t stable_hash(std::string_view text);

/// The random elements of the tensor called `name`. Element i comes from word i mod 4 of the Philox
/// block whose key is the seed and whose counter is (i div 4, hash of the name).
class RandomElements {
 public:
  RandomElements(uint64_t seed, std::string_view name) : seed_(seed), hash_(stable_hash(name)) {}

  /// Elements [first, first + numel), uniform over [low, high) before rounding to fp32.
  void uniform(float* out, int64_t first, int64_t numel, double low, double high) const;
  /// The same, normal: Box-Muller over the two words of each pair.
  void normal(float* out, int64_t first, int64_t numel, double mean, double std) const;

 private:
  [[nodiscard]] std::array<uint32_t, 4> block(uint64_t number) const;

  uint64_t seed_;
  uint64_t hash_;
};

}  // namespace sherd::detail
