#include "llm/model/random_weights.h"

#include <set>
#include <string>

#include "llm/model/parts.h"

namespace llm::model {

sherd::ParamInitFn random_weights(const CausalLmImpl& model, double std) {
  std::set<std::string> norms;
  std::set<std::string> biases;
  for (const auto& item : model.named_modules("", /*include_self=*/false)) {
    if (dynamic_cast<const NormImpl*>(item.value().get()) != nullptr) {
      norms.insert(item.key() + ".weight");
    }
    biases.insert(item.key() + ".bias");
  }
  return [norms, biases, std](sherd::ParameterInit& parameter) {
    if (norms.contains(parameter.name())) {
      parameter.fill_constant(1);
    } else if (biases.contains(parameter.name())) {
      parameter.fill_constant(0);
    } else {
      parameter.fill_normal(0, std);
    }
  };
}

}  // namespace llm::model
