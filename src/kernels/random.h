#pragma once
// Random numbers that depend on seed, name and index alone, however a tensor is cut.

#include <array>
#include <cstdint>
#include <string_view>
#include <variant>

namespace sherd::kernels {

/// Philox4x32 with 10 rounds.  Paper: "Parallel random numbers: as easy as 1, 2, 3",
/// doi:10.1145/2063384.2063405.
[[nodiscard]] constexpr std::array<uint32_t, 4> philox4x32_10(std::array<uint32_t, 4> counter,
                                                              std::array<uint32_t, 2> key) {
  constexpr int kRounds = 10;
  for (int round = 0; round < kRounds; ++round) {
    const uint64_t first = uint64_t{0xD2511F53} * counter[0];
    const uint64_t second = uint64_t{0xCD9E8D57} * counter[2];
    counter = {
        static_cast<uint32_t>(second >> 32U) ^ counter[1] ^ key[0], static_cast<uint32_t>(second),
        static_cast<uint32_t>(first >> 32U) ^ counter[3] ^ key[1], static_cast<uint32_t>(first)};
    key = {key[0] + 0x9E3779B9, key[1] + 0xBB67AE85};
  }
  return counter;
}

/// FNV-1a of 64 bits: the same on every machine, unlike std::hash.
[[nodiscard]] constexpr uint64_t stable_hash(std::string_view text) {
  uint64_t hash = 0xCBF29CE484222325;
  for (const char c : text) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3;
  }
  return hash;
}

/// The random words of one tensor. Element i is made from word i mod 4 of block i div 4; normal
/// elements come in pairs, from the two words of a pair.
struct RandomWords {
  static constexpr int kPerBlock = 4;
  uint64_t seed = 0;
  uint64_t name_hash = 0;  ///< stable_hash() of the tensor's name

  [[nodiscard]] constexpr std::array<uint32_t, kPerBlock> block(uint64_t number) const {
    return philox4x32_10(
        {static_cast<uint32_t>(number), static_cast<uint32_t>(number >> 32U),
         static_cast<uint32_t>(name_hash), static_cast<uint32_t>(name_hash >> 32U)},
        {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32U)});
  }
};

/// A word as a number in (0, 1): never 0, whose logarithm is infinite.
[[nodiscard]] constexpr double open_unit(uint32_t word) {
  return (static_cast<double>(word) + 0.5) * 0x1p-32;
}
/// A word as a number in [0, 1).
[[nodiscard]] constexpr double half_open_unit(uint32_t word) {
  return static_cast<double>(word) * 0x1p-32;
}

/// Over [low, high) before rounding to fp32.
struct Uniform {
  double low = 0;
  double high = 1;
};
/// Box-Muller in double, rounded to fp32.
struct Normal {
  double mean = 0;
  double std = 1;
};
using Distribution = std::variant<Uniform, Normal>;

/// Writes the elements of `blocks` whole blocks from `first_block` on: out [4 × blocks].
void fill_random(float* out, uint64_t first_block, int64_t blocks, const RandomWords& words,
                 const Distribution& distribution);

}  // namespace sherd::kernels
