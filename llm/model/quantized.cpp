#include "llm/model/quantized.h"

#include <map>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include "llm/model/adapter_names.h"
#include "llm/model/decoder.h"
#include "ops/q8_0.h"
#include "sherd/error.h"

namespace llm::model {
namespace {

namespace q8_0 = sherd::ops::q8_0;

// By qualified name: what linear maps of layers multiply with.
std::map<std::string, at::Tensor> layer_matrices(const CausalLmImpl& model) {
  std::map<std::string, at::Tensor> matrices;
  for (const auto& module : model.named_modules("", /*include_self=*/false)) {
    if (dynamic_cast<const DecoderLayerImpl*>(module.value().get()) == nullptr) {
      continue;
    }
    for (const auto& parameter : module.value()->named_parameters()) {
      if (parameter.value().dim() == 2 && !is_of_adapter(parameter.key())) {
        matrices.emplace(module.key() + "." + parameter.key(), parameter.value());
      }
    }
  }
  return matrices;
}

void require_frozen(const std::string& name, const at::Tensor& weight) {
  if (weight.requires_grad()) {
    throw sherd::Error(
        sherd::ExitCode::Usage,
        fmt::format("model.quantize = \"q8_0\" keeps {} in 8 bits, in which it cannot be trained: "
                    "train an adapter (adapter.kind = \"lora\"), leave the weight out of what is "
                    "trained, or set model.quantize = \"none\"",
                    name));
  }
}

at::Tensor blocks_of(const at::Tensor& weight) {
  return weight.is_meta() ? at::empty({weight.size(0), q8_0::row_bytes(weight.size(1))},
                                      weight.options().dtype(at::kByte).requires_grad(false))
                          : q8_0::quantized(weight);
}

}  // namespace

void quantize_q8_0(CausalLmImpl& model) {
  const at::NoGradGuard no_grad;
  auto matrices = layer_matrices(model);
  std::erase_if(matrices, [](const auto& item) {
    return q8_0::is_quantized(item.second) || !q8_0::fits(item.second.size(1));
  });
  for (const auto& [name, weight] : matrices) {
    require_frozen(name, weight);
  }
  for (auto [name, weight] : matrices) {
    weight.set_data(blocks_of(weight));  // the module's members hold this very tensor
  }
}

std::int64_t quantized_numbers(const CausalLmImpl& model) {
  std::int64_t numbers = 0;
  for (const at::Tensor& parameter : model.parameters()) {
    numbers += q8_0::is_quantized(parameter) ? q8_0::numbers_in(parameter) : 0;
  }
  return numbers;
}

std::string unquantized_line(const CausalLmImpl& model) {
  auto left = layer_matrices(model);
  std::erase_if(left, [](const auto& item) { return q8_0::is_quantized(item.second); });
  if (left.empty()) {
    return "";
  }
  const auto& [name, weight] = *left.begin();
  return fmt::format(
      "model.quantize: {} weight{} not quantized, because rows of Q8_0 are a multiple of 32 "
      "numbers: {} has rows of {}{}",
      left.size(), left.size() == 1 ? " is" : "s are", name, weight.size(1),
      left.size() == 1 ? "" : "; and so on");
}

}  // namespace llm::model
