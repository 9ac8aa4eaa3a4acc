#pragma once
// Keys and values of the tokens a model has read, for decoding token by token.

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>

#include "ops/attention_kernel.h"
#include "ops/attention_scores.h"
#include "ops/documents.h"

namespace llm::model {

/// The keys and values of every layer for texts of different lengths, one a row. A token lies at
/// its position, so that rows need no alignment: row b's next token goes to slot lengths[b].
///
/// Used by CausalLmImpl::decode(): begin() with what is new, attend() once a layer, advance().
/// After an exception a cache is of no use any more.
/// Memory: 2 × layers × rows × K × capacity × H elements, allocated at the first call.
class KvCache {
 public:
  /// Room for `capacity_tokens` tokens a row, prompt and answer together.
  explicit KvCache(int64_t capacity_tokens) : capacity_(capacity_tokens) {}

  /// Announces the tokens of a call: the prompts, a document each, if the cache is empty, else one
  /// token a row. Throws c10::Error if there are others, or if they do not fit.
  void begin(const sherd::ops::Documents& documents);
  /// Stores a layer's new keys and values and attends to all that its rows have, or to what the
  /// window of `scores` holds: no more is read than the windows of all rows span.
  /// `kernel` computes the prompts' attention on a GPU.
  /// Shapes: query [T, N, H], key and value [T, K, H], ALiBi's slopes and `scores` as in
  /// ops::attention
  /// -> [T, N × H].
  [[nodiscard]] at::Tensor attend(
      int64_t layer, const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
      const std::optional<at::Tensor>& alibi_slopes = std::nullopt,
      sherd::ops::AttentionKernel kernel = sherd::ops::AttentionKernel::Auto,
      const sherd::ops::AttentionScores& scores = {});
  /// Counts the announced tokens as read.
  void advance();
  /// Goes on with fewer rows: row i becomes what row rows[i] was, rows[i] ≥ i, none twice. Finished
  /// texts leave so; where the last row takes the place of each, only that one is copied.
  void keep(std::span<const int64_t> rows);

  /// Whether nothing has been read yet.
  [[nodiscard]] bool empty() const noexcept { return reading_prompts_; }
  [[nodiscard]] int64_t rows() const noexcept { return static_cast<int64_t>(lengths_.size()); }
  [[nodiscard]] int64_t capacity_tokens() const noexcept { return capacity_; }
  /// Where the announced token of each row goes: int64 [rows]. Only when not empty().
  [[nodiscard]] const at::Tensor& positions() const noexcept { return positions_B_; }

 private:
  struct Layer {
    at::Tensor keys_BKSH;  // rows that have left lie behind those that go on
    at::Tensor values_BKSH;
  };

  void find_lengths();
  void store_prompts(int64_t layer, const at::Tensor& key, const at::Tensor& value);

  int64_t capacity_;
  bool reading_prompts_ = true;
  sherd::ops::Documents announced_;
  std::vector<int64_t> lengths_;        // tokens of each row
  int64_t longest_ = 0, shortest_ = 0;  // of them
  at::Tensor positions_B_;
  std::vector<Layer> layers_;
};

}  // namespace llm::model
