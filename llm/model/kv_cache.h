#pragma once
// Keys and values of the tokens a model has read, for decoding token by token.

#include <cstdint>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

namespace llm::model {

/// The keys and values of every layer for a batch of texts of different lengths. A token lies at
/// its position, so that rows need no alignment: row b's next token goes to slot lengths[b].
///
/// Used by CausalLmImpl::decode(): begin() with what is new, attend() once a layer, advance().
/// After an exception a cache is of no use any more.
/// Memory: 2 × layers × B × K × capacity × H elements, allocated at the first call.
class KvCache {
 public:
  /// Room for `capacity_tokens` tokens a row, prompt and answer together.
  explicit KvCache(int64_t capacity_tokens) : capacity_(capacity_tokens) {}

  /// Announces the tokens of a call: the prompts, padded on the right, if the cache is empty, else
  /// one token a row. Mask int64 [B, T]: 1 where there is a token. A row whose mask is 0 stands
  /// still, and its output means nothing.
  /// Throws c10::Error if they do not fit.
  void begin(const at::Tensor& attention_mask_BT);
  /// Stores a layer's new keys and values and attends to all that its rows have.
  /// Shapes: query [B, N, T, H], key and value [B, K, T, H], ALiBi's slopes as in ops::attention
  /// -> [B, T, N × H].
  [[nodiscard]] at::Tensor attend(int64_t layer, const at::Tensor& query, const at::Tensor& key,
                                  const at::Tensor& value,
                                  const std::optional<at::Tensor>& alibi_slopes = std::nullopt);
  /// Counts the announced tokens as read.
  void advance();

  [[nodiscard]] bool empty() const noexcept { return longest_ == 0; }
  [[nodiscard]] int64_t capacity_tokens() const noexcept { return capacity_; }
  /// Where the announced token of each row goes: int64 [B]. Only when not empty().
  [[nodiscard]] const at::Tensor& positions() const noexcept { return positions_B_; }

 private:
  struct Layer {
    at::Tensor keys_BKSH;
    at::Tensor values_BKSH;
  };

  int64_t capacity_;
  int64_t longest_ = 0;  // tokens of the longest row
  at::Tensor lengths_B_;
  at::Tensor announced_B_;  // tokens of each row in this call
  at::Tensor positions_B_;
  std::vector<Layer> layers_;
};

}  // namespace llm::model
