// Blocks of quantised numbers. Digests: gguf 0.19.0 from PyPI (quants.dequantize, quants.quantize)
// of the same bytes.

#include "llm/gguf/blocks.h"

#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "files/sha256.h"
#include "ops/q8_0.h"

namespace llm::gguf {
namespace {

// Pseudorandom bytes, the same everywhere.
std::vector<std::uint8_t> stream_of_bytes(std::size_t count) {
  std::vector<std::uint8_t> bytes;
  std::uint32_t state = 1;
  while (bytes.size() < count) {
    state = (state * 1'103'515'245U + 12'345U) & 0x7FFF'FFFFU;
    bytes.push_back(static_cast<std::uint8_t>(state >> 16 & 0xFFU));
  }
  return bytes;
}

template <class Number>
std::string digest_of_numbers(const std::vector<Number>& numbers) {
  return sherd::files::sha256_of(
             {reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(Number)})
      .substr(0, 16);
}

struct BlockCase {
  TensorType type;
  std::vector<std::size_t> scales;  // bytes where an fp16 scale begins
  const char* digest;
};

class Blocks : public testing::TestWithParam<BlockCase> {};
INSTANTIATE_TEST_SUITE_P(Types, Blocks,
                         testing::Values(BlockCase{TensorType::Q8_0, {0}, "e381d26a023e6040"},
                                         BlockCase{TensorType::Q4_0, {0}, "f6f6813ccbed9e49"},
                                         BlockCase{TensorType::Q4_1, {0, 2}, "2d18661dab0e0932"},
                                         BlockCase{TensorType::Q5_0, {0}, "414090652536f0f6"},
                                         BlockCase{TensorType::Q4_K, {0, 2}, "7603c728a431da1a"},
                                         BlockCase{TensorType::Q6_K, {208}, "848ee6a263debb07"}),
                         [](const auto& one) { return layout_of(one.param.type).name; });

TEST_P(Blocks, MeanWhatThePackageReads) {
  constexpr std::int64_t kBlocks = 64;
  const TypeLayout& layout = layout_of(GetParam().type);
  auto bytes = stream_of_bytes(static_cast<std::size_t>(kBlocks * layout.block_bytes));
  for (std::int64_t block = 0; block < kBlocks; ++block) {
    for (const std::size_t scale : GetParam().scales) {
      bytes[static_cast<std::size_t>(block * layout.block_bytes) + scale + 1] &= 0xBF;  // is finite
    }
  }
  std::vector<float> numbers(static_cast<std::size_t>(kBlocks * layout.block_numbers));
  dequantize(layout.type, bytes.data(), kBlocks, numbers.data());
  EXPECT_EQ(digest_of_numbers(numbers), GetParam().digest);
}

TEST(Q8, RoundsAsThePackageDoes) {
  const auto bytes = stream_of_bytes(4 * 32 * 64);
  std::vector<float> numbers;
  for (std::size_t i = 0; i < bytes.size(); i += 4) {
    const int whole = bytes[i] + 256 * bytes[i + 1] + 65'536 * bytes[i + 2];
    numbers.push_back(static_cast<float>(whole - 8'388'608) / 65'536.0F);
  }
  for (std::size_t i = 0; i < 32; ++i) {
    numbers[5 * 32 + i] = 0;
    numbers[6 * 32 + i] *= 1e-30F;                        // a scale that fp16 cannot hold
    numbers[7 * 32 + i] = static_cast<float>(i) - 15.5F;  // halves
  }
  numbers[std::size_t{7} * 32] = 127;
  std::vector<std::uint8_t> found(64 * 34);
  sherd::ops::q8_0::quantize(numbers.data(), 64, found.data());
  EXPECT_EQ(digest_of_numbers(found), "86ab181620309029");
  EXPECT_EQ(found[7 * 34 + 3], static_cast<std::uint8_t>(-15));  // of -14.5
}

}  // namespace
}  // namespace llm::gguf
