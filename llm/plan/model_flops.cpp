#include "llm/plan/model_flops.h"

#include <set>
#include <string>

namespace llm::plan {

std::vector<at::Tensor> linear_weights(const model::CausalLmImpl& model) {
  std::set<std::string> tables = {"lm_head.weight"};
  for (const auto& item : model.named_modules("", /*include_self=*/false)) {
    if (dynamic_cast<const model::TokenEmbeddingImpl*>(item.value().get()) != nullptr) {
      tables.insert(item.key() + ".weight");
    }
  }
  std::vector<at::Tensor> weights;
  for (const auto& item : model.named_parameters()) {
    if (item.value().dim() == 2 && !tables.contains(item.key())) {
      weights.push_back(item.value());
    }
  }
  return weights;
}

ModelFlops model_flops(const model::CausalLmImpl& model, const model::DecoderConfig& config) {
  // Forward, towards the input, and towards the weight; a multiplication and an addition.
  constexpr double kOfAProduct = 3 * 2;
  constexpr double kProductsOfAttention = 2;  // scores, and what they mix
  double weights = 0;
  for (const at::Tensor& weight : linear_weights(model)) {
    weights += static_cast<double>(weight.numel());
  }
  return {.a_token = kOfAProduct * weights,
          .a_supervised_token =
              kOfAProduct * static_cast<double>(config.hidden_size * config.vocab_size),
          .a_pair = kOfAProduct * kProductsOfAttention *
                    static_cast<double>(config.layers * config.heads * config.head_size)};
}

}  // namespace llm::plan
