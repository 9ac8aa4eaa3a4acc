#pragma once
// What the fused attention kernels of GPUs serve: for the kernels themselves and for plans.

#include <cstdint>

namespace sherd::ops {

/// Columns that each head grows by for ALiBi (ops/cuda/alibi.h).
inline constexpr std::int64_t kAlibiColumns = 8;
/// Most tokens of a document that those columns serve.
inline constexpr std::int64_t kLongestAlibiDocument = 32'768;
inline constexpr std::int64_t kWidestFlashHead = 256;  ///< with ALiBi's columns
inline constexpr std::int64_t kWidestCudnnHead = 128;
/// Heads of 16 bits are read in packs of as many values.
inline constexpr std::int64_t kHeadPack = 8;

/// True if a GPU of this major compute capability has fused attention, in 16 bits.
[[nodiscard]] constexpr bool has_fused_attention(int major) {
  return major >= 8;
}

/// True if cuDNN's attention is the fastest on this major compute capability: where LibTorch
/// prefers it to flash attention too.
[[nodiscard]] constexpr bool prefers_cudnn_attention(int major) {
  return major == 9 || major == 10;
}

/// True if flash attention serves heads of this size.
[[nodiscard]] constexpr bool serves_flash_heads(std::int64_t head_size, bool has_alibi) {
  return head_size > 0 && head_size % kHeadPack == 0 &&
         head_size + (has_alibi ? kAlibiColumns : 0) <= kWidestFlashHead;
}

/// True if cuDNN's attention serves heads of this size. It serves no ALiBi.
[[nodiscard]] constexpr bool serves_cudnn_heads(std::int64_t head_size) {
  return head_size > 0 && head_size % kHeadPack == 0 && head_size <= kWidestCudnnHead;
}

}  // namespace sherd::ops
