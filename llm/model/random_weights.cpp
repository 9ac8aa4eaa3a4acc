#include "llm/model/random_weights.h"

#include <map>
#include <set>
#include <string>

#include "llm/model/parts.h"
#include "sherd/lora.h"

namespace llm::model {

sherd::ParamInitFn random_weights(const CausalLmImpl& model, double std) {
  std::map<std::string, double> norms;
  std::set<std::string> biases;
  for (const auto& item : model.named_modules("", /*include_self=*/false)) {
    if (const auto* norm = dynamic_cast<const NormImpl*>(item.value().get())) {
      norms[item.key() + ".weight"] = norm->neutral_weight();
    }
    biases.insert(item.key() + ".bias");
  }
  return [norms, biases, std](sherd::ParameterInit& parameter) {
    if (sherd::initialize_lora(parameter)) {
      return;
    }
    if (const auto norm = norms.find(parameter.name()); norm != norms.end()) {
      parameter.fill_constant(norm->second);
    } else if (biases.contains(parameter.name())) {
      parameter.fill_constant(0);
    } else {
      parameter.fill_normal(0, std);
    }
  };
}

}  // namespace llm::model
