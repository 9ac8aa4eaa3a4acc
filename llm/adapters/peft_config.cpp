#include "llm/adapters/peft_config.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <set>
#include <system_error>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "files/json.h"
#include "llm/adapters/chosen_modules.h"
#include "sherd/error.h"

namespace llm::adapters {

namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

// Fields that are read below, and those that no computation with a saved adapter depends on.
constexpr std::array kReadFields = {"peft_type",
                                    "task_type",
                                    "r",
                                    "lora_alpha",
                                    "lora_dropout",
                                    "target_modules",
                                    "exclude_modules",
                                    "use_rslora",
                                    "rank_pattern",
                                    "alpha_pattern",
                                    "layers_to_transform",
                                    "layers_pattern",
                                    "modules_to_save",
                                    "bias",
                                    "base_model_name_or_path",
                                    "revision",
                                    "init_lora_weights",
                                    "ensure_weight_tying"};
constexpr std::array kHarmlessFields = {"auto_mapping",   "inference_mode",    "peft_version",
                                        "megatron_core",  "qalora_group_size", "fan_in_fan_out",
                                        "runtime_config", "eva_config"};

// The reason for refusing a field that is not neutral; the message names the field too.
struct Refusal {
  const char* field;
  const char* reason;
};
constexpr std::array kReasons = {
    Refusal{"use_dora", "DoRA scales the rows of the sum of weight and adapter"},
    Refusal{"lora_bias", "the adapter has biases"},
    Refusal{"alora_invocation_tokens", "the adapter begins at a token (aLoRA)"},
    Refusal{"layer_replication", "layers are used several times"},
    Refusal{"target_parameters", "parameters of experts are adapted"},
    Refusal{"trainable_token_indices", "single rows of the embedding are trained"},
    Refusal{"use_qalora", "inputs are pooled before the adapter (QALoRA)"},
    Refusal{"loftq_config", "LoftQ changes the base"},
    Refusal{"corda_config", "CorDA changes the base"},
    Refusal{"lora_ga_config", "LoRA-GA changes the base"},
    Refusal{"megatron_config", "linear maps are Megatron's"},
};

// One adapter_config.json.
class Fields {
 public:
  explicit Fields(const std::string& folder)
      : path_((fs::path(folder) / kPeftConfigFile).string()),
        json_(sherd::files::read_json_object<ordered_json>(path_)) {}

  [[noreturn]] void fail(const std::string& field, const std::string& what) const {
    throw sherd::Error(sherd::ExitCode::BadData, fmt::format("{}: \"{}\" {}", path_, field, what));
  }
  [[noreturn]] void fail_value(const std::string& field, const std::string& expected) const {
    fail(field, fmt::format("must be {}, found {}", expected, shown(field)));
  }

  // Null if it is missing.
  [[nodiscard]] const ordered_json& at(const char* field) const {
    static const ordered_json null;
    const auto found = json_.find(field);
    return found == json_.end() ? null : *found;
  }
  [[nodiscard]] std::string text(const char* field) const {
    const ordered_json& value = at(field);
    if (!value.is_null() && !value.is_string()) {
      fail_value(field, "a string");
    }
    return value.is_null() ? "" : value.get<std::string>();
  }
  [[nodiscard]] bool flag(const char* field) const {
    const ordered_json& value = at(field);
    if (!value.is_null() && !value.is_boolean()) {
      fail_value(field, "true or false");
    }
    return !value.is_null() && value.get<bool>();
  }
  [[nodiscard]] double number(const char* field, double otherwise) const {
    const ordered_json& value = at(field);
    if (!value.is_null() && (!value.is_number() || !std::isfinite(value.get<double>()))) {
      fail_value(field, "a number");
    }
    return value.is_null() ? otherwise : value.get<double>();
  }
  [[nodiscard]] std::int64_t rank(const char* field, const ordered_json& value) const {
    constexpr std::int64_t kMost = 65'536;
    if (!value.is_number_integer() || value < 1 || value > kMost) {
      fail(field,
           fmt::format("must have a whole number from 1 to {}, found {}", kMost, value.dump()));
    }
    return value.get<std::int64_t>();
  }
  // A list of strings; of one string, that.
  [[nodiscard]] std::vector<std::string> names(const char* field) const {
    const ordered_json& value = at(field);
    if (value.is_null()) {
      return {};
    }
    if (value.is_string()) {
      return {value.get<std::string>()};
    }
    std::vector<std::string> all;
    for (const ordered_json& item : value) {
      if (!value.is_array() || !item.is_string() || item.get<std::string>().empty()) {
        fail_value(field, "a list of names");
      }
      all.push_back(item.get<std::string>());
    }
    return all;
  }
  [[nodiscard]] config::ModuleChoice modules(const char* field) const {
    const ordered_json& value = at(field);
    return value.is_string() ? config::ModuleChoice{.pattern = value.get<std::string>()}
                             : config::ModuleChoice{.names = names(field)};
  }
  // PATTERN=NUMBER of each entry of an object.
  [[nodiscard]] std::vector<std::string> numbers_by_pattern(const char* field,
                                                            bool are_ranks) const {
    const ordered_json& value = at(field);
    if (!value.is_null() && !value.is_object()) {
      fail_value(field, "an object of numbers");
    }
    std::vector<std::string> entries;
    for (const auto& [pattern, number] : value.items()) {
      if (are_ranks) {
        static_cast<void>(rank(field, number));
      }
      if (pattern.empty() || !number.is_number() || number <= 0) {
        fail_value(field, "an object of numbers above 0");
      }
      entries.push_back(pattern + "=" + number.dump());
    }
    return entries;
  }
  [[nodiscard]] std::vector<std::int64_t> layers(const char* field) const {
    const ordered_json& value = at(field);
    std::vector<std::int64_t> all;
    const auto add = [&](const ordered_json& layer) {
      if (!layer.is_number_integer() || layer < 0) {
        fail_value(field, "a whole number, or a list of them");
      }
      all.push_back(layer.get<std::int64_t>());
    };
    if (value.is_array()) {
      std::for_each(value.begin(), value.end(), add);
    } else if (!value.is_null()) {
      add(value);
    }
    return all;
  }

  // Every other field says nothing.
  void refuse_others() const {
    const auto is_in = [](const auto& fields, const std::string& name) {
      return std::find(fields.begin(), fields.end(), name) != fields.end();
    };
    for (const auto& [name, value] : json_.items()) {
      const bool says_nothing = value.is_null() || value == false ||
                                ((value.is_structured() || value.is_string()) && value.empty());
      if (says_nothing || is_in(kReadFields, name) || is_in(kHarmlessFields, name)) {
        continue;
      }
      const auto reason = std::find_if(kReasons.begin(), kReasons.end(),
                                       [&](const Refusal& each) { return name == each.field; });
      fail(name, fmt::format("{} is not supported{}", shown(name),
                             reason == kReasons.end() ? std::string()
                                                      : std::string(": ") + reason->reason));
    }
  }

  [[nodiscard]] std::string shown(const std::string& field) const {
    constexpr std::size_t kMost = 80;
    const std::string whole = at(field.c_str()).dump();
    return whole.size() <= kMost ? whole : whole.substr(0, kMost) + "…";
  }

 private:
  std::string path_;
  ordered_json json_;
};

void check_kind(const Fields& fields) {
  if (fields.text("peft_type") != "LORA") {
    fields.fail("peft_type", fields.shown("peft_type") + " is not supported, only \"LORA\"");
  }
  const std::string task = fields.text("task_type");
  if (!task.empty() && task != "CAUSAL_LM") {
    fields.fail("task_type", fields.shown("task_type") + " is not supported, only \"CAUSAL_LM\"");
  }
  const std::string bias = fields.text("bias");
  if (!bias.empty() && bias != "none") {
    fields.fail("bias", fields.shown("bias") +
                            " is not supported, only \"none\": biases of the base are not trained");
  }
  // A saved adapter has its values; how they began matters where the base was changed too.
  const ordered_json& init = fields.at("init_lora_weights");
  const bool keeps_base = init.is_null() || init.is_boolean() || init == "gaussian";
  if (!keeps_base) {
    fields.fail("init_lora_weights",
                fields.shown("init_lora_weights") +
                    " is not supported: it changes the base, or needs data. Convert the adapter in "
                    "PEFT: save_pretrained(path_initial_model_for_weight_conversion=…)");
  }
}

void check_targets(const Fields& fields, const config::AdapterSection& adapter) {
  if (adapter.targets.empty()) {
    fields.fail("target_modules", "is empty: name the modules that the adapter changes");
  }
  if (!adapter.layers.empty() && adapter.targets.names.empty()) {
    fields.fail("layers_to_transform", "is for a list in \"target_modules\", and that is " +
                                           fields.shown("target_modules"));
  }
}

// A folder decides these; one that was given must be the same.
void require_same(const config::AdapterSection& given, const config::AdapterSection& folder) {
  const config::AdapterSection usual;
  std::vector<std::string> others;
  const auto check = [&](const char* key, const auto& mine, const auto& neutral, const auto& its) {
    if (mine != neutral && mine != its) {
      others.emplace_back(key);
    }
  };
  check("rank", given.rank, usual.rank, folder.rank);
  check("alpha", given.alpha, usual.alpha, folder.alpha);
  check("targets", given.targets, usual.targets, folder.targets);
  check("exclude", given.exclude, usual.exclude, folder.exclude);
  check("rank_stabilized", given.rank_stabilized, usual.rank_stabilized, folder.rank_stabilized);
  check("rank_pattern", given.rank_pattern, usual.rank_pattern, folder.rank_pattern);
  check("alpha_pattern", given.alpha_pattern, usual.alpha_pattern, folder.alpha_pattern);
  check("layers", given.layers, usual.layers, folder.layers);
  check("layers_pattern", given.layers_pattern, usual.layers_pattern, folder.layers_pattern);
  check("modules_to_save", given.modules_to_save, usual.modules_to_save, folder.modules_to_save);
  if (!others.empty()) {
    throw sherd::Error(
        sherd::ExitCode::Usage,
        fmt::format("adapter.{} differ{} from the adapter in '{}', which adapter.path starts from: "
                    "leave {} out, or start a fresh adapter without adapter.path",
                    fmt::join(others, ", adapter."), others.size() == 1 ? "s" : "", given.path,
                    others.size() == 1 ? "it" : "them"));
  }
}

// The names that "all-linear" found, as a list finds them.
std::vector<std::string> listed_targets(const torch::nn::Module& model,
                                        const config::AdapterSection& adapter) {
  const auto names_of = [](const ChosenModules& chosen) {
    std::vector<std::string> names;
    for (const AdaptedModule& module : chosen.adapted) {
      names.push_back(module.name);
    }
    return names;
  };
  const std::vector<std::string> whole = names_of(choose_modules(model, adapter));
  std::set<std::string> parts;
  for (const std::string& name : whole) {
    parts.insert(name.substr(name.rfind('.') + 1));
  }
  config::AdapterSection by_parts = adapter;
  by_parts.targets = {.names = {parts.begin(), parts.end()}};
  return names_of(choose_modules(model, by_parts)) == whole ? by_parts.targets.names : whole;
}

ordered_json json_of(const config::ModuleChoice& choice) {
  if (choice.empty()) {
    return nullptr;
  }
  return choice.pattern.empty() ? ordered_json(choice.names) : ordered_json(choice.pattern);
}

template <class Item>
ordered_json null_if_empty(const std::vector<Item>& items) {
  return items.empty() ? ordered_json() : ordered_json(items);
}

// A whole number without a fraction.
ordered_json json_of(double number) {
  return number == std::floor(number) && std::abs(number) < 1e15
             ? ordered_json(static_cast<std::int64_t>(number))
             : ordered_json(number);
}

ordered_json object_of(const std::vector<std::string>& entries) {
  ordered_json object = ordered_json::object();
  for (const std::string& entry : entries) {
    const auto [pattern, number] = config::pattern_number(entry);
    object[pattern] = json_of(number);
  }
  return object;
}

}  // namespace

bool is_peft_folder(const std::string& folder) {
  std::error_code ignored;
  return fs::exists(fs::path(folder) / kPeftConfigFile, ignored) &&
         !fs::exists(fs::path(folder) / "config.json", ignored);
}

PeftConfig read_peft_config(const std::string& folder) {
  const Fields fields(folder);
  check_kind(fields);
  PeftConfig read;
  config::AdapterSection& adapter = read.adapter;
  adapter.kind = config::AdapterKind::Lora;
  adapter.path = folder;
  adapter.rank = fields.at("r").is_null() ? 8 : fields.rank("r", fields.at("r"));
  adapter.alpha = fields.number("lora_alpha", 8);
  if (adapter.alpha <= 0) {
    fields.fail_value("lora_alpha", "a number above 0");
  }
  adapter.dropout = fields.number("lora_dropout", 0);
  if (adapter.dropout < 0 || adapter.dropout >= 1) {
    fields.fail_value("lora_dropout", "a number of at least 0 and below 1");
  }
  adapter.targets = fields.modules("target_modules");
  adapter.exclude = fields.modules("exclude_modules");
  adapter.rank_stabilized = fields.flag("use_rslora");
  adapter.rank_pattern = fields.numbers_by_pattern("rank_pattern", true);
  adapter.alpha_pattern = fields.numbers_by_pattern("alpha_pattern", false);
  adapter.layers = fields.layers("layers_to_transform");
  adapter.layers_pattern = fields.names("layers_pattern");
  adapter.modules_to_save = fields.names("modules_to_save");
  read.base = fields.text("base_model_name_or_path");
  read.revision = fields.text("revision");
  read.ties_weights = fields.flag("ensure_weight_tying");
  check_targets(fields, adapter);
  fields.refuse_others();
  return read;
}

std::string base_folder_of(const PeftConfig& config) {
  std::error_code ignored;
  if (config.base.empty() || fs::path(config.base).is_absolute()) {
    return config.base;
  }
  const fs::path beside = (fs::path(config.adapter.path) / config.base).lexically_normal();
  return fs::exists(beside, ignored) ? beside.string() : config.base;
}

config::AdapterSection with_folder(const config::AdapterSection& adapter) {
  if (adapter.kind == config::AdapterKind::None || adapter.path.empty()) {
    return adapter;
  }
  return decided_by(read_peft_config(adapter.path).adapter, adapter);
}

config::AdapterSection decided_by(const config::AdapterSection& folder,
                                  const config::AdapterSection& given) {
  require_same(given, folder);
  config::AdapterSection whole = folder;
  whole.path = given.path;
  whole.dropout = given.dropout;
  return whole;
}

std::string peft_config_text(const torch::nn::Module& model, const config::AdapterSection& adapter,
                             const std::string& base, bool tied_embedding,
                             const std::string& revision) {
  const bool lists = adapter.targets.pattern == config::kAllLinear;
  const ChosenModules chosen = choose_modules(model, adapter);
  const ordered_json file = {
      {"alpha_pattern", object_of(adapter.alpha_pattern)},
      {"base_model_name_or_path", base},
      {"bias", "none"},
      {"ensure_weight_tying", tied_embedding && !chosen.whole.empty()},
      {"exclude_modules", json_of(adapter.exclude)},
      {"fan_in_fan_out", has_transposed_weights(model)},
      {"inference_mode", true},
      {"init_lora_weights", true},
      {"layers_pattern", null_if_empty(adapter.layers_pattern)},
      {"layers_to_transform", null_if_empty(adapter.layers)},
      {"lora_alpha", json_of(adapter.alpha)},
      {"lora_dropout", adapter.dropout},
      {"modules_to_save", null_if_empty(adapter.modules_to_save)},
      {"peft_type", "LORA"},
      {"r", adapter.rank},
      {"rank_pattern", object_of(adapter.rank_pattern)},
      {"revision", revision.empty() ? ordered_json() : ordered_json(revision)},
      {"target_modules",
       lists ? ordered_json(listed_targets(model, adapter)) : json_of(adapter.targets)},
      {"task_type", "CAUSAL_LM"},
      {"use_dora", false},
      {"use_rslora", adapter.rank_stabilized}};
  return file.dump(2) + "\n";
}

}  // namespace llm::adapters
