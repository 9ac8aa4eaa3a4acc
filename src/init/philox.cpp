#include "init/philox.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace sherd::detail {

namespace {

constexpr uint32_t low_word(uint64_t value) {
  return static_cast<uint32_t>(value);
}

constexpr uint32_t high_word(uint64_t value) {
  return static_cast<uint32_t>(value >> 32U);
}

// In (0, 1): never 0, whose logarithm is not finite.
double open_unit(uint32_t word) {
  return (static_cast<double>(word) + 0.5) * 0x1p-32;
}

// Calls fill(block number) for each block of four that the elements lie in, and writes the elements
// asked for.
template <class Fill>
void for_each_block(float* out, int64_t first, int64_t numel, const Fill& fill) {
  for (int64_t done = 0; done < numel;) {
    const int64_t element = first + done;
    const std::array<double, 4> values = fill(static_cast<uint64_t>(element / 4));
    const int64_t lane = element % 4;
    const int64_t count = std::min(4 - lane, numel - done);
    for (int64_t i = 0; i < count; ++i) {
      out[done + i] = static_cast<float>(values[static_cast<size_t>(lane + i)]);
    }
    done += count;
  }
}

}  // namespace

std::array<uint32_t, 4> philox4x32_10(std::array<uint32_t, 4> counter,
                                      std::array<uint32_t, 2> key) {
  constexpr int kRounds = 10;
  for (int round = 0; round < kRounds; ++round) {
    const uint64_t first = uint64_t{0xD2511F53} * counter[0];
    const uint64_t second = uint64_t{0xCD9E8D57} * counter[2];
    counter = {high_word(second) ^ counter[1] ^ key[0], low_word(second),
               high_word(first) ^ counter[3] ^ key[1], low_word(first)};
    key = {key[0] + 0x9E3779B9, key[1] + 0xBB67AE85};
  }
  return counter;
}

uint64_t stable_hash(std::string_view text) {
  uint64_t hash = 0xCBF29CE484222325;
  for (const char c : text) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3;
  }
  return hash;
}

std::array<uint32_t, 4> RandomElements::block(uint64_t number) const {
  return philox4x32_10({low_word(number), high_word(number), low_word(hash_), high_word(hash_)},
                       {low_word(seed_), high_word(seed_)});
}

void RandomElements::uniform(float* out, int64_t first, int64_t numel, double low,
                             double high) const {
  for_each_block(out, first, numel, [&](uint64_t number) {
    std::array<double, 4> values{};
    const auto words = block(number);
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = low + (high - low) * (static_cast<double>(words[i]) * 0x1p-32);
    }
    return values;
  });
}

void RandomElements::normal(float* out, int64_t first, int64_t numel, double mean,
                            double std) const {
  for_each_block(out, first, numel, [&](uint64_t number) {
    std::array<double, 4> values{};
    const auto words = block(number);
    for (size_t i = 0; i < values.size(); i += 2) {
      const double radius = std::sqrt(-2.0 * std::log(open_unit(words[i])));
      const double angle = 2.0 * std::numbers::pi * open_unit(words[i + 1]);
      values[i] = mean + std * radius * std::cos(angle);
      values[i + 1] = mean + std * radius * std::sin(angle);
    }
    return values;
  });
}

}  // namespace sherd::detail
