#include "llm/plan/model_flops.h"

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "llm/model/decoder.h"
#include "ops/q8_0.h"

namespace llm::plan {

namespace {

constexpr const char* kHead = "lm_head.weight";

std::vector<std::pair<std::string, at::Tensor>> named_linear_weights(
    const model::CausalLmImpl& model) {
  std::set<std::string> tables = {kHead};
  for (const auto& item : model.named_modules("", /*include_self=*/false)) {
    if (dynamic_cast<const model::TokenEmbeddingImpl*>(item.value().get()) != nullptr) {
      tables.insert(item.key() + ".weight");
    }
  }
  std::vector<std::pair<std::string, at::Tensor>> weights;
  for (const auto& item : model.named_parameters()) {
    if (item.value().dim() == 2 && !tables.contains(item.key())) {
      weights.emplace_back(item.key(), item.value());
    }
  }
  return weights;
}

}  // namespace

std::vector<at::Tensor> linear_weights(const model::CausalLmImpl& model) {
  std::vector<at::Tensor> weights;
  for (auto& [name, weight] : named_linear_weights(model)) {
    weights.push_back(weight);
  }
  return weights;
}

namespace {

// The range of backward, by the order in which parameters are computed with. A frozen parameter
// before the first trained one needs no backward.
class BackwardReach {
 public:
  explicit BackwardReach(const model::CausalLmImpl& model) {
    std::size_t place = 0;
    for (const auto& item : model.named_parameters()) {
      places_[item.key()] = place;
      if (item.value().requires_grad()) {
        first_trained_ = std::min(first_trained_, place);
      }
      ++place;
    }
  }
  [[nodiscard]] bool comes_before(const std::string& parameter) const {
    return first_trained_ < places_.at(parameter);
  }
  // Before the last parameter of a module.
  [[nodiscard]] bool comes_before_end_of(const std::string& module) const {
    return std::any_of(places_.begin(), places_.end(), [&](const auto& item) {
      return item.first.starts_with(module + ".") && first_trained_ < item.second;
    });
  }
  [[nodiscard]] bool comes_before_all_are_done() const { return first_trained_ < places_.size(); }

 private:
  std::map<std::string, std::size_t> places_;
  std::size_t first_trained_ = std::numeric_limits<std::size_t>::max();
};

// Layers whose attention has a backward.
double layers_with_backward(const model::CausalLmImpl& model, const BackwardReach& reach) {
  double layers = 0;
  for (const auto& item : model.named_modules("", /*include_self=*/false)) {
    if (dynamic_cast<const model::AttentionImpl*>(item.value().get()) != nullptr) {
      layers += reach.comes_before_end_of(item.key()) ? 1 : 0;
    }
  }
  return layers;
}

// Forward, towards the input, and towards the weight.
double products_of(const at::Tensor& weight, bool has_input_gradient) {
  return 1.0 + (has_input_gradient ? 1 : 0) + (weight.requires_grad() ? 1 : 0);
}

double products_of_head(const model::CausalLmImpl& model, const BackwardReach& reach) {
  const auto parameters = model.named_parameters();
  const at::Tensor* head = parameters.find(kHead);
  return head != nullptr ? products_of(*head, reach.comes_before(kHead))
                         : products_of(parameters[0].value(), reach.comes_before_all_are_done());
}

}  // namespace

ModelFlops model_flops(const model::CausalLmImpl& model, const model::DecoderConfig& config) {
  constexpr double kMultiplyAndAdd = 2;
  constexpr double kProductsOfAttention = 2;  // scores, and what they mix
  const BackwardReach reach(model);
  double of_weights = 0;
  for (const auto& [name, weight] : named_linear_weights(model)) {
    of_weights += static_cast<double>(sherd::ops::q8_0::numbers_in(weight)) *
                  products_of(weight, reach.comes_before(name));
  }
  const double attention =
      static_cast<double>(config.layers) + 2 * layers_with_backward(model, reach);
  return {.a_token = kMultiplyAndAdd * of_weights,
          .a_supervised_token = kMultiplyAndAdd * products_of_head(model, reach) *
                                static_cast<double>(config.hidden_size * config.vocab_size),
          .a_pair = kMultiplyAndAdd * kProductsOfAttention * attention *
                    static_cast<double>(config.heads * config.head_size)};
}

}  // namespace llm::plan
