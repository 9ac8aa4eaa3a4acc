#include "kernels/random.h"

#include <cmath>
#include <numbers>

namespace sherd::kernels {

namespace {

using Words = std::array<uint32_t, RandomWords::kPerBlock>;

void write_block(float* out, const Words& words, const Uniform& of) {
  for (size_t i = 0; i < words.size(); ++i) {
    out[i] = static_cast<float>(of.low + (of.high - of.low) * half_open_unit(words[i]));
  }
}

void write_block(float* out, const Words& words, const Normal& of) {
  for (size_t i = 0; i < words.size(); i += 2) {
    const double radius = std::sqrt(-2.0 * std::log(open_unit(words[i])));
    const double angle = 2.0 * std::numbers::pi * open_unit(words[i + 1]);
    out[i] = static_cast<float>(of.mean + of.std * radius * std::cos(angle));
    out[i + 1] = static_cast<float>(of.mean + of.std * radius * std::sin(angle));
  }
}

}  // namespace

void fill_random(float* out, uint64_t first_block, int64_t blocks, const RandomWords& words,
                 const Distribution& distribution) {
  std::visit(
      [&](const auto& of) {
        for (int64_t block = 0; block < blocks; ++block) {
          write_block(out + block * RandomWords::kPerBlock,
                      words.block(first_block + static_cast<uint64_t>(block)), of);
        }
      },
      distribution);
}

}  // namespace sherd::kernels
