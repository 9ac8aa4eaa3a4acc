#include "llm/io/export.h"

#include <filesystem>

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
    const std::string source = source_folder + "/" + name;
    if (std::filesystem::exists(source)) {
      sherd::files::check_link(source_folder, source);
      names.emplace_back(name);
    }
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
