#include "llm/adapters/peft_weights.h"

#include <filesystem>
#include <set>

#include <fmt/format.h>

#include "llm/adapters/adapt.h"
#include "llm/adapters/peft_config.h"
#include "sherd/checkpoint.h"
#include "sherd/error.h"

namespace llm::adapters {

namespace {

// PEFT copies a module that it trains whole: of a tied embedding the head then stays as it was.
void check_tied_embedding(const model::CausalLmImpl& model, const config::AdapterSection& adapter,
                          const std::set<std::string>& parameters) {
  if (model.config().tied_embedding && parameters.contains(model.embedding_name()) &&
      !read_peft_config(adapter.path).ties_weights) {
    throw sherd::Error(
        sherd::ExitCode::BadData,
        fmt::format(
            "{}: \"modules_to_save\" trains the embedding '{}', which is the head too, and "
            "PEFT trained it apart from the head (\"ensure_weight_tying\" is false). Merge the "
            "adapter in PEFT, and save the model with tie_word_embeddings = false",
            (std::filesystem::path(adapter.path) / kPeftConfigFile).string(),
            model.embedding_name()));
  }
}

}  // namespace

std::string peft_weights_path(const config::AdapterSection& adapter) {
  return (std::filesystem::path(adapter.path) / kPeftWeightsFile).string();
}

std::string peft_name(const std::string& parameter) {
  return "base_model.model." + parameter;
}

std::vector<sherd::SafetensorsSpec> peft_specs(const model::CausalLmImpl& model,
                                               const config::AdapterSection& adapter,
                                               c10::ScalarType dtype) {
  const std::set<std::string> wanted = adapter_parameters(model, adapter);
  std::vector<sherd::SafetensorsSpec> specs;
  for (const auto& parameter : model.named_parameters()) {
    if (wanted.contains(parameter.key())) {
      specs.push_back({peft_name(parameter.key()), dtype, parameter.value().sizes().vec()});
    }
  }
  return specs;
}

void require_peft_tensors(const model::CausalLmImpl& model, const config::AdapterSection& adapter) {
  const sherd::SafetensorsFolder file(peft_weights_path(adapter));
  std::string faults;
  std::set<std::string> expected;
  for (const sherd::SafetensorsSpec& spec : peft_specs(model, adapter, at::kFloat)) {
    expected.insert(spec.name);
    const auto found = file.find(spec.name);
    if (!found) {
      faults += fmt::format("\n  '{}' is missing", spec.name);
    } else if (found->entry->shape != spec.shape) {
      faults += fmt::format("\n  '{}' has shape [{}], expected [{}]", spec.name,
                            fmt::join(found->entry->shape, ", "), fmt::join(spec.shape, ", "));
    } else if (!c10::isFloatingType(found->entry->dtype)) {
      faults += fmt::format("\n  '{}' is stored as {}, expected floats", spec.name,
                            found->entry->dtype_name);
    }
  }
  for (const std::string& name : file.names()) {
    if (!expected.contains(name)) {
      faults += fmt::format("\n  '{}' belongs to nothing that {} names", name, kPeftConfigFile);
    }
  }
  if (!faults.empty()) {
    throw sherd::Error(sherd::ExitCode::BadData,
                       fmt::format("{}: the tensors are not those of this model's adapter:{}",
                                   peft_weights_path(adapter), faults));
  }
  check_tied_embedding(model, adapter, adapter_parameters(model, adapter));
}

void load_adapter(sherd::Sharded<model::CausalLm>& model, const config::AdapterSection& adapter) {
  const std::set<std::string> wanted = adapter_parameters(*model.module(), adapter);
  sherd::load_safetensors(model, peft_weights_path(adapter), [&](const std::string& parameter) {
    return wanted.contains(parameter) ? peft_name(parameter) : std::string();
  });
}

}  // namespace llm::adapters
