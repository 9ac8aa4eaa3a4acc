#pragma once
// Cyclic redundancy checks of 32 bits.

#include <array>
#include <cstdint>
#include <string_view>

namespace llm::track {

/// CRC-32 of a polynomial, whose bits are given in reverse. crc32("123456789") is 0xcbf43926,
/// crc32c of it 0xe3069283.
class Crc32 {
 public:
  explicit constexpr Crc32(std::uint32_t reversed_polynomial) {
    for (std::uint32_t byte = 0; byte < table_.size(); ++byte) {
      std::uint32_t value = byte;
      for (int bit = 0; bit < 8; ++bit) {
        value = (value >> 1U) ^ ((value & 1U) != 0 ? reversed_polynomial : 0U);
      }
      table_[byte] = value;
    }
  }

  /// Of `bytes` or, given the check of what stands before them, of both together.
  [[nodiscard]] constexpr std::uint32_t operator()(std::string_view bytes,
                                                   std::uint32_t before = 0) const {
    std::uint32_t value = ~before;
    for (const char byte : bytes) {
      value = table_[(value ^ static_cast<std::uint8_t>(byte)) & 0xffU] ^ (value >> 8U);
    }
    return ~value;
  }

 private:
  std::array<std::uint32_t, 256> table_{};
};

inline constexpr Crc32 crc32{0xedb88320U};   ///< of IEEE 802.3, gzip, PNG
inline constexpr Crc32 crc32c{0x82f63b78U};  ///< of Castagnoli

}  // namespace llm::track
