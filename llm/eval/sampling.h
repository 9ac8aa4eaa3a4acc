#pragma once
// Choosing a next token by chance.

#include <cstdint>
#include <span>

#include "llm/text/tokenizer.h"

namespace llm::eval {

/// How a next token is chosen from its scores.
struct Sampling {
  double temperature = 0;  ///< divides the scores; 0: always the likeliest token
  double top_p = 1;        ///< the likeliest tokens that together reach this probability
  std::int64_t top_k = 0;  ///< the number of likeliest tokens to choose from; 0: all
  std::uint64_t seed = 0;

  [[nodiscard]] bool is_greedy() const { return temperature == 0; }
};

/// Where a token stands: the text's number and the number of tokens written before it.
struct TokenPlace {
  std::uint64_t text = 0;
  std::uint64_t position = 0;
};

/// Draws a token with the probabilities of `scores_V`, in double precision. Temperature, top-k and
/// top-p apply in this order. The random number is Philox4x32-10 of seed and place alone, so that
/// no other text and no number of ranks changes it. Requires a temperature above 0.
/// PyTorch: transformers' TemperatureLogitsWarper, TopKLogitsWarper and TopPLogitsWarper.
[[nodiscard]] text::TokenId sampled_token(std::span<const float> scores_V, const Sampling& sampling,
                                          const TokenPlace& place);

}  // namespace llm::eval
