#pragma once
// How much a model multiplies when it is trained.

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "llm/model/causal_lm.h"
#include "llm/model/decoder_config.h"

namespace llm::plan {

/// Floating point operations of the matrix products that training takes, forward and backward; a
/// multiplication and an addition are two. A frozen weight has no product towards it, and what
/// comes before the first trained parameter no backward. What is computed again to save memory does
/// not count.
/// Source: Chowdhery et al. 2022, PaLM, arXiv:2204.02311, appendix B; of the head and of attention
/// only what the loss depends on.
/// Where layers have a window, pairs are those of an average layer (DecoderConfig::seen_pairs()).
struct ModelFlops {
  double a_token = 0;             ///< in linear layers
  double a_supervised_token = 0;  ///< in the head, which others do not need
  double a_pair = 0;              ///< of a token and one that it sees in each layer

  [[nodiscard]] double of(std::int64_t tokens, std::int64_t supervised_tokens,
                          std::int64_t pairs) const {
    return a_token * static_cast<double>(tokens) +
           a_supervised_token * static_cast<double>(supervised_tokens) +
           a_pair * static_cast<double>(pairs);
  }
};

/// `model` may hold shapes only.
[[nodiscard]] ModelFlops model_flops(const model::CausalLmImpl& model,
                                     const model::DecoderConfig& config);

/// The weights of linear layers, [outputs, inputs], without the head's.
[[nodiscard]] std::vector<at::Tensor> linear_weights(const model::CausalLmImpl& model);

}  // namespace llm::plan
