#include "llm/adapters/adapt.h"

#include <map>
#include <optional>

#include <fmt/format.h>

#include "llm/model/adapter_names.h"
#include "ops/q8_0.h"

namespace llm::adapters {

ChosenModules adapt(torch::nn::Module& model, const config::AdapterSection& adapter) {
  ChosenModules chosen = choose_modules(model, adapter);
  std::map<std::string, sherd::LoraShape> shapes;
  for (const AdaptedModule& module : chosen.adapted) {
    shapes.emplace(module.name, module.shape);
  }
  sherd::LoraOptions options;
  options.choose = [&](const std::string& module) {
    const auto found = shapes.find(module);
    return found == shapes.end() ? std::nullopt : std::optional(found->second);
  };
  sherd::lora(model, options);
  const auto modules = model.named_modules("", /*include_self=*/false);
  for (const std::string& whole : chosen.whole) {
    for (at::Tensor& parameter : modules[whole]->parameters()) {
      parameter.set_requires_grad(true);
    }
  }
  return chosen;
}

std::set<std::string> adapter_parameters(const torch::nn::Module& model,
                                         const config::AdapterSection& adapter) {
  const ChosenModules chosen = choose_modules(model, adapter);
  std::set<std::string> names;
  for (const auto& parameter : model.named_parameters()) {
    bool is_wanted = model::is_of_adapter(parameter.key());
    for (const std::string& whole : chosen.whole) {
      is_wanted = is_wanted || parameter.key().starts_with(whole + ".");
    }
    if (is_wanted) {
      names.insert(parameter.key());
    }
  }
  return names;
}

std::string adapter_line(const torch::nn::Module& model, const config::AdapterSection& adapter) {
  const ChosenModules chosen = choose_modules(model, adapter);
  const std::set<std::string> of_adapter = adapter_parameters(model, adapter);
  std::int64_t all = 0, trained = 0;
  for (const auto& parameter : model.named_parameters()) {
    all += sherd::ops::q8_0::numbers_in(parameter.value());
    trained += of_adapter.contains(parameter.key()) ? parameter.value().numel() : 0;
  }
  const std::string whole =
      chosen.whole.empty() ? "" : fmt::format(", and {} whole", fmt::join(chosen.whole, ", "));
  return fmt::format(
      "adapter: LoRA on {} linear map{}, {}{}; trains {} of {} parameters ({:.3g} %)",
      chosen.adapted.size(), chosen.adapted.size() == 1 ? "" : "s", shapes_text(chosen), whole,
      trained, all, 100.0 * static_cast<double>(trained) / static_cast<double>(all));
}

}  // namespace llm::adapters
