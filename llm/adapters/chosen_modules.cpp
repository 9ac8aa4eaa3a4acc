#include "llm/adapters/chosen_modules.h"

#include <algorithm>
#include <cctype>
#include <optional>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "llm/config/nearest_name.h"
#include "llm/text/pattern.h"
#include "sherd/error.h"

namespace llm::adapters {

namespace {

constexpr const char* kHeadModule = "lm_head";

[[noreturn]] void fail(const config::AdapterSection& adapter, const std::string& what) {
  if (adapter.path.empty()) {
    throw sherd::Error(sherd::ExitCode::Usage, what);
  }
  throw sherd::Error(sherd::ExitCode::BadData, "the adapter in '" + adapter.path + "': " + what);
}

text::Pattern compiled(const std::string& source, const std::string& key,
                       const config::AdapterSection& adapter) {
  try {
    return text::Pattern(source);
  } catch (const sherd::Error& error) {
    fail(adapter, key + ": " + error.what());
  }
}

bool ends_in(const std::string& name, const std::string& entry) {
  return name.ends_with("." + entry);
}

std::string last_part(const std::string& name) {
  return name.substr(name.rfind('.') + 1);
}

// The rule by which a name was found.
enum class Found { No, ByPattern, ByName, ByEnd };

// adapter.targets or adapter.exclude.
class NamedModules {
 public:
  NamedModules(const config::ModuleChoice& choice, const std::string& key,
               const config::AdapterSection& adapter)
      : names_(choice.names) {
    if (!choice.pattern.empty() && choice.pattern != config::kAllLinear) {
      pattern_.emplace(compiled(choice.pattern, key, adapter));
    }
    all_linear_ = choice.pattern == config::kAllLinear;
  }

  [[nodiscard]] Found find(const std::string& name, bool is_linear) const {
    if (all_linear_) {
      return is_linear && name != kHeadModule ? Found::ByPattern : Found::No;
    }
    if (pattern_) {
      return pattern_->matches_whole(name) ? Found::ByPattern : Found::No;
    }
    if (std::find(names_.begin(), names_.end(), name) != names_.end()) {
      return Found::ByName;
    }
    const bool is_end = std::any_of(names_.begin(), names_.end(),
                                    [&](const auto& entry) { return ends_in(name, entry); });
    return is_end ? Found::ByEnd : Found::No;
  }

 private:
  std::vector<std::string> names_;
  std::optional<text::Pattern> pattern_;
  bool all_linear_ = false;
};

// The layer that a module is in: the last number between dots that stands behind a name that is
// wanted, with something before it.
class LayerNumbers {
 public:
  explicit LayerNumbers(const config::AdapterSection& adapter) : adapter_(adapter) {
    for (const std::string& pattern : adapter.layers_pattern) {
      patterns_.push_back(compiled(".*\\." + pattern, "adapter.layers_pattern", adapter));
    }
    if (patterns_.empty()) {
      patterns_.push_back(text::Pattern(".*\\.[^.]*"));
    }
  }

  [[nodiscard]] bool are_wanted(const std::string& module) const {
    if (adapter_.layers.empty()) {
      return true;
    }
    for (const text::Pattern& pattern : patterns_) {
      if (const auto layer = number_behind(pattern, module)) {
        return std::find(adapter_.layers.begin(), adapter_.layers.end(), *layer) !=
               adapter_.layers.end();
      }
    }
    return false;
  }

 private:
  static std::optional<std::int64_t> number_behind(const text::Pattern& pattern,
                                                   const std::string& module) {
    constexpr std::size_t kMostDigits = 9;
    std::size_t end = module.rfind('.');
    while (end != std::string::npos && end > 0) {
      const std::size_t begin = module.rfind('.', end - 1);
      if (begin == std::string::npos) {
        return std::nullopt;
      }
      const std::string part = module.substr(begin + 1, end - begin - 1);
      const bool is_number = !part.empty() && part.size() <= kMostDigits &&
                             std::all_of(part.begin(), part.end(),
                                         [](unsigned char c) { return std::isdigit(c) != 0; });
      if (is_number && pattern.matches_whole(module.substr(0, begin))) {
        return std::stoll(part);
      }
      end = begin;
    }
    return std::nullopt;
  }

  const config::AdapterSection& adapter_;
  std::vector<text::Pattern> patterns_;
};

// rank_pattern or alpha_pattern.
class NumbersByPattern {
 public:
  NumbersByPattern(const std::vector<std::string>& entries, const std::string& key,
                   const config::AdapterSection& adapter) {
    for (const std::string& entry : entries) {
      const auto [pattern, number] = config::pattern_number(entry);
      numbers_.emplace_back(compiled("(.*\\.)?(" + pattern + ")", key, adapter), number);
    }
  }

  [[nodiscard]] double of(const std::string& module, double otherwise) const {
    for (const auto& [pattern, number] : numbers_) {
      if (pattern.matches_whole(module)) {
        return number;
      }
    }
    return otherwise;
  }

 private:
  std::vector<std::pair<text::Pattern, double>> numbers_;
};

struct ModuleName {
  std::string name;
  bool is_linear;
};

std::vector<ModuleName> modules_of(const torch::nn::Module& model) {
  std::vector<ModuleName> modules;
  for (const auto& item : model.named_modules("", /*include_self=*/false)) {
    if (item.key().ends_with(".lora_A") || item.key().ends_with(".lora_B")) {
      continue;  // the model is adapted already
    }
    modules.push_back(
        {item.key(), dynamic_cast<const sherd::LoraModule*>(item.value().get()) != nullptr});
  }
  return modules;
}

// "q_proj, k_proj, …": the last parts of the names of all linear maps, in order.
std::vector<std::string> linear_parts(const std::vector<ModuleName>& modules) {
  std::vector<std::string> parts;
  for (const auto& [name, is_linear] : modules) {
    const std::string part = last_part(name);
    if (is_linear && std::find(parts.begin(), parts.end(), part) == parts.end()) {
      parts.push_back(part);
    }
  }
  return parts;
}

std::string did_you_mean(const std::string& entry, const std::vector<std::string>& candidates) {
  const std::string nearest = config::nearest_name(entry, candidates);
  return nearest.empty() ? "" : ". Did you mean \"" + nearest + "\"?";
}

// An entry of adapter.targets finds no linear map.
[[noreturn]] void refuse_names(const config::AdapterSection& adapter, const std::string& entry,
                               const std::vector<ModuleName>& modules) {
  const std::vector<std::string> parts = linear_parts(modules);
  const std::string meant = did_you_mean(entry, parts);
  fail(adapter,
       fmt::format("adapter.targets: \"{}\" is no linear map of the model{} Their names end "
                   "in {}",
                   entry, meant.empty() ? "." : meant, fmt::join(parts, ", ")));
}

[[noreturn]] void refuse_pattern(const config::AdapterSection& adapter,
                                 const std::vector<ModuleName>& modules) {
  const std::string& pattern = adapter.targets.pattern;
  const std::vector<std::string> parts = linear_parts(modules);
  const bool is_part = std::find(parts.begin(), parts.end(), pattern) != parts.end();
  const auto example =
      std::find_if(modules.begin(), modules.end(), [](const auto& each) { return each.is_linear; });
  fail(adapter,
       fmt::format(
           "adapter.targets: the pattern \"{}\" matches the whole name of no linear map, such "
           "as \"{}\". {}",
           pattern, example == modules.end() ? "" : example->name,
           is_part ? fmt::format("Give a list, [\"{}\"], for ends of names", pattern)
                   : fmt::format("Their names end in {}", fmt::join(parts, ", "))));
}

std::vector<std::string> whole_modules(const config::AdapterSection& adapter,
                                       const std::vector<ModuleName>& modules) {
  std::set<std::string> wanted;
  for (const std::string& entry : adapter.modules_to_save) {
    const std::size_t before = wanted.size();
    std::vector<std::string> parts;
    for (const ModuleName& module : modules) {
      parts.push_back(last_part(module.name));
      if (module.name == entry || ends_in(module.name, entry)) {
        wanted.insert(module.name);
      }
    }
    if (wanted.size() == before) {
      fail(adapter,
           fmt::format("adapter.modules_to_save: \"{}\" is no module of the model{}", entry,
                       entry == kHeadModule
                           ? ": its head is the embedding (tie_word_embeddings). Give the "
                             "embedding to train both"
                           : did_you_mean(entry, parts)));
    }
  }
  std::vector<std::string> whole;
  for (const ModuleName& module : modules) {
    if (wanted.contains(module.name)) {
      whole.push_back(module.name);
    }
  }
  return whole;
}

bool is_within(const std::string& module, const std::vector<std::string>& whole) {
  return std::any_of(whole.begin(), whole.end(), [&](const std::string& outer) {
    return module == outer || module.starts_with(outer + ".");
  });
}

// Every name of a list that a person wrote finds something. A folder of PEFT may name more, but not
// only such names.
void require_names(const config::AdapterSection& adapter, const std::vector<ModuleName>& modules) {
  const auto is_found = [&](const std::string& entry) {
    return std::any_of(modules.begin(), modules.end(), [&](const auto& module) {
      return module.name == entry || ends_in(module.name, entry);
    });
  };
  const std::vector<std::string>& names = adapter.targets.names;
  const auto lost = std::find_if_not(names.begin(), names.end(), is_found);
  const bool may_lose = !adapter.path.empty() && std::any_of(names.begin(), names.end(), is_found);
  if (lost != names.end() && !may_lose) {
    refuse_names(adapter, *lost, modules);
  }
}

}  // namespace

ChosenModules choose_modules(const torch::nn::Module& model,
                             const config::AdapterSection& adapter) {
  const std::vector<ModuleName> modules = modules_of(model);
  ChosenModules chosen{{}, whole_modules(adapter, modules)};
  require_names(adapter, modules);
  const NamedModules targets(adapter.targets, "adapter.targets", adapter);
  const NamedModules excluded(adapter.exclude, "adapter.exclude", adapter);
  const LayerNumbers layers(adapter);
  const NumbersByPattern ranks(adapter.rank_pattern, "adapter.rank_pattern", adapter);
  const NumbersByPattern alphas(adapter.alpha_pattern, "adapter.alpha_pattern", adapter);
  for (const auto& [name, is_linear] : modules) {
    if (excluded.find(name, is_linear) != Found::No || is_within(name, chosen.whole)) {
      continue;
    }
    const Found found = targets.find(name, is_linear);
    if (found == Found::No || (found == Found::ByEnd && !layers.are_wanted(name))) {
      continue;
    }
    if (!is_linear) {
      fail(adapter,
           fmt::format("adapter.targets finds \"{}\", which is no linear map. Only these are "
                       "adapted; adapter.modules_to_save trains a module whole",
                       name));
    }
    const double rank = ranks.of(name, static_cast<double>(adapter.rank));
    chosen.adapted.push_back({name,
                              {.rank = static_cast<std::int64_t>(rank),
                               .alpha = alphas.of(name, adapter.alpha),
                               .dropout = adapter.dropout,
                               .rank_stabilized = adapter.rank_stabilized}});
  }
  if (chosen.adapted.empty()) {
    if (!adapter.targets.pattern.empty() && adapter.targets.pattern != config::kAllLinear) {
      refuse_pattern(adapter, modules);
    }
    fail(adapter,
         "adapter.targets leaves no linear map to adapt: see adapter.layers and "
         "adapter.exclude");
  }
  return chosen;
}

bool has_transposed_weights(const torch::nn::Module& model) {
  for (const auto& item : model.named_modules("", /*include_self=*/false)) {
    const auto* linear = dynamic_cast<const sherd::LoraModule*>(item.value().get());
    const auto parameters = item.value()->named_parameters(/*recurse=*/false);
    const at::Tensor* weight = parameters.find("weight");
    if (linear != nullptr && weight != nullptr && weight->size(0) != linear->out_features()) {
      return true;
    }
  }
  return false;
}

std::string shapes_text(const ChosenModules& chosen) {
  const auto range = [&](const char* one, const char* many, const auto& number_of) {
    double least = number_of(chosen.adapted.front()), most = least;
    for (const AdaptedModule& module : chosen.adapted) {
      least = std::min<double>(least, number_of(module));
      most = std::max<double>(most, number_of(module));
    }
    return least == most ? fmt::format("{} {:.4g}", one, least)
                         : fmt::format("{} {:.4g} to {:.4g}", many, least, most);
  };
  return range("rank", "ranks",
               [](const auto& each) { return static_cast<double>(each.shape.rank); }) +
         ", " + range("scale", "scales", [](const auto& each) { return each.shape.scale(); });
}

}  // namespace llm::adapters
