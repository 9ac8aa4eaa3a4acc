#include "llm/model/random_weights.h"

#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/randn.h>

#include "llm/model/parts.h"
#include "ops/q8_0.h"
#include "sherd/lora.h"

namespace llm::model {

namespace {

namespace q8_0 = sherd::ops::q8_0;

at::Tensor random_blocks(const sherd::ParameterInit& parameter, double std, uint64_t seed) {
  const std::vector<int64_t>& bytes = parameter.shape();
  auto generator =
      at::detail::createCPUGenerator(seed ^ std::hash<std::string>()(parameter.name()));
  return q8_0::quantized(at::randn({bytes[0], q8_0::row_numbers(bytes[1])}, generator) * std);
}

std::set<std::string> quantized_names(const CausalLmImpl& model) {
  std::set<std::string> names;
  for (const auto& item : model.named_parameters()) {
    if (q8_0::is_quantized(item.value())) {
      names.insert(item.key());
    }
  }
  return names;
}

}  // namespace

sherd::ParamInitFn random_weights(const CausalLmImpl& model, double std, uint64_t seed) {
  std::map<std::string, double> norms;
  std::set<std::string> biases;
  for (const auto& item : model.named_modules("", /*include_self=*/false)) {
    if (const auto* norm = dynamic_cast<const NormImpl*>(item.value().get())) {
      norms[item.key() + ".weight"] = norm->neutral_weight();
    }
    biases.insert(item.key() + ".bias");
  }
  return [norms, biases, quantized = quantized_names(model), std,
          seed](sherd::ParameterInit& parameter) {
    if (sherd::initialize_lora(parameter)) {
      return;
    }
    if (quantized.contains(parameter.name())) {
      parameter.fill_from(random_blocks(parameter, std, seed));
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
