#include "llm/gguf/blocks.h"

#include <cstring>

#include <c10/util/Exception.h>
#include <c10/util/Half.h>

namespace llm::gguf {
namespace {

float half_at(const std::uint8_t* bytes) {
  std::uint16_t bits = 0;
  std::memcpy(&bits, bytes, sizeof bits);
  return c10::Half(bits, c10::Half::from_bits());
}

// A byte's low and high half are numbers i and i + 16 of the block.
void read_q4_0(const std::uint8_t* block, float* out) {
  const float scale = half_at(block);
  for (int i = 0; i < 16; ++i) {
    const int packed = block[2 + i];
    out[i] = scale * static_cast<float>((packed & 15) - 8);
    out[i + 16] = scale * static_cast<float>((packed >> 4) - 8);
  }
}

void read_q4_1(const std::uint8_t* block, float* out) {
  const float scale = half_at(block);
  const float least = half_at(block + 2);
  for (int i = 0; i < 16; ++i) {
    const int packed = block[4 + i];
    out[i] = scale * static_cast<float>(packed & 15) + least;
    out[i + 16] = scale * static_cast<float>(packed >> 4) + least;
  }
}

// Four bytes hold the fifth bit of each number.
void read_q5_0(const std::uint8_t* block, float* out) {
  const float scale = half_at(block);
  std::uint32_t high = 0;
  std::memcpy(&high, block + 2, sizeof high);
  for (int i = 0; i < 16; ++i) {
    const int packed = block[6 + i];
    const int first = (packed & 15) | (static_cast<int>(high >> i & 1) << 4);
    const int second = (packed >> 4) | (static_cast<int>(high >> (i + 16) & 1) << 4);
    out[i] = scale * static_cast<float>(first - 16);
    out[i + 16] = scale * static_cast<float>(second - 16);
  }
}

void read_q8_0(const std::uint8_t* block, float* out) {
  const float scale = half_at(block);
  for (int i = 0; i < 32; ++i) {
    out[i] = scale * static_cast<float>(static_cast<std::int8_t>(block[2 + i]));
  }
}

// Eight groups of 32 numbers, each with a scale and a minimum of 6 bits: those of groups 0 to 3
// lie whole in bytes 0 to 3 and 4 to 7, whose two high bits belong to groups 4 to 7.
void read_q4_k(const std::uint8_t* block, float* out) {
  const float scale = half_at(block);
  const float least = half_at(block + 2);
  const std::uint8_t* packed = block + 4;
  for (int group = 0; group < 8; ++group) {
    const int low = group % 4;
    const int six_bits =
        group < 4 ? packed[low] & 63 : (packed[low + 8] & 15) | (packed[low] >> 6 << 4);
    const int six_bits_of_least =
        group < 4 ? packed[low + 4] & 63 : (packed[low + 8] >> 4) | (packed[low + 4] >> 6 << 4);
    const float group_scale = scale * static_cast<float>(six_bits);
    const float group_least = least * static_cast<float>(six_bits_of_least);
    const std::uint8_t* numbers = block + 16 + 32 * (group / 2);
    for (int i = 0; i < 32; ++i) {
      const int four_bits = group % 2 == 0 ? numbers[i] & 15 : numbers[i] >> 4;
      out[32 * group + i] = group_scale * static_cast<float>(four_bits) - group_least;
    }
  }
}

// 128 bytes of four low bits, 64 of two high bits, a scale of 8 bits for 16 numbers.
void read_q6_k(const std::uint8_t* block, float* out) {
  const std::uint8_t* low = block;
  const std::uint8_t* high = block + 128;
  const std::uint8_t* scales = block + 192;
  const float scale = half_at(block + 208);
  for (int i = 0; i < 256; ++i) {
    const int half = i / 128, quarter = i % 128 / 32, at = i % 32;
    const int four_bits = low[64 * half + 32 * (quarter % 2) + at] >> (quarter < 2 ? 0 : 4) & 15;
    const int two_bits = high[32 * half + at] >> (2 * quarter) & 3;
    const float group_scale = scale * static_cast<float>(static_cast<std::int8_t>(scales[i / 16]));
    out[i] = group_scale * static_cast<float>((four_bits | two_bits << 4) - 32);
  }
}

using ReadBlock = void (*)(const std::uint8_t* block, float* out);

ReadBlock reader_of(TensorType type) {
  switch (type) {
    case TensorType::Q4_0:
      return &read_q4_0;
    case TensorType::Q4_1:
      return &read_q4_1;
    case TensorType::Q5_0:
      return &read_q5_0;
    case TensorType::Q8_0:
      return &read_q8_0;
    case TensorType::Q4_K:
      return &read_q4_k;
    case TensorType::Q6_K:
      return &read_q6_k;
    case TensorType::F32:
    case TensorType::F16:
    case TensorType::BF16:
      break;
  }
  TORCH_INTERNAL_ASSERT(false, layout_of(type).name, " has no blocks");
}

}  // namespace

void dequantize(TensorType type, const std::uint8_t* bytes, std::int64_t blocks, float* out) {
  const TypeLayout& layout = layout_of(type);
  const ReadBlock read = reader_of(type);
  for (std::int64_t i = 0; i < blocks; ++i) {
    read(bytes + i * layout.block_bytes, out + i * layout.block_numbers);
  }
}

}  // namespace llm::gguf
