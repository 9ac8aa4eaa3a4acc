#include "llm/io/export.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <iterator>
#include <system_error>

#include <nlohmann/json.hpp>

#include "files/folder.h"
#include "files/input.h"
#include "files/output.h"
#include "llm/io/hf_config.h"

namespace llm::io {
namespace {

constexpr const char* kCopied[] = {"generation_config.json",
                                   "tokenizer.json",
                                   "tokenizer_config.json",
                                   "special_tokens_map.json",
                                   "added_tokens.json",
                                   "tokenizer.model",
                                   "vocab.json",
                                   "merges.txt",
                                   "chat_template.jinja",
                                   "chat_template.json"};

// How the names of files begin that a licence asks to pass on, in upper case.
constexpr const char* kOfLicence[] = {"LICENSE", "LICENCE", "NOTICE", "USE_POLICY", "README"};

bool is_of_licence(const std::string& name) {
  std::string upper = name;
  std::transform(upper.begin(), upper.end(), upper.begin(),
                 [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  return std::any_of(std::begin(kOfLicence), std::end(kOfLicence),
                     [&](const char* begin) { return upper.starts_with(begin); });
}

// Those of a folder itself, in order. A link counts by what it leads to.
std::vector<std::string> licence_files(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(folder, ignored)) {
    const std::string name = entry.path().filename().string();
    if (is_of_licence(name) && entry.is_regular_file(ignored)) {
      names.push_back(name);
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

// The largest file of a tokenizer in use has about 35 MB.
constexpr std::uint64_t kMaxCopiedBytes = std::uint64_t{128} << 20;

}  // namespace

std::vector<sherd::SafetensorsSpec> export_specs(const model::CausalLmImpl& model,
                                                 c10::ScalarType dtype) {
  std::vector<sherd::SafetensorsSpec> specs;
  for (const auto& parameter : model.named_parameters()) {
    specs.push_back({parameter.key(), dtype, parameter.value().sizes().vec()});
  }
  return specs;
}

std::vector<std::string> copied_files(const std::string& source_folder) {
  sherd::files::check_link(source_folder, source_folder + "/config.json");
  std::vector<std::string> names;
  for (const char* name : kCopied) {
    if (std::filesystem::exists(source_folder + "/" + name)) {
      names.emplace_back(name);
    }
  }
  const std::vector<std::string> of_licence = licence_files(source_folder);
  names.insert(names.end(), of_licence.begin(), of_licence.end());
  for (const std::string& name : names) {
    sherd::files::check_link(source_folder, source_folder + "/" + name);
  }
  return names;
}

void copy_config_and_tokenizer(const std::string& source_folder, const std::string& out_folder,
                               c10::ScalarType dtype) {
  const std::vector<std::string> names = copied_files(source_folder);
  auto config = read_config_json(source_folder + "/config.json");
  for (const std::string& name : names) {
    sherd::files::write_file(out_folder + "/" + name,
                             sherd::files::read_file(source_folder + "/" + name, kMaxCopiedBytes));
  }
  const bool new_spelling = config.contains("dtype");
  if (new_spelling) {
    config["dtype"] = name_of_dtype(dtype);
  }
  if (config.contains("torch_dtype") || !new_spelling) {
    config["torch_dtype"] = name_of_dtype(dtype);
  }
  sherd::files::write_file(out_folder + "/config.json", config.dump(2) + "\n");
}

}  // namespace llm::io
