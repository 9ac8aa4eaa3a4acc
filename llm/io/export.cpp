#include "llm/io/export.h"

#include <filesystem>
#include <fstream>
#include <iterator>

#include "llm/io/durable_file.h"
#include "llm/io/hf_config.h"
#include "llm/io/json_file.h"
#include "sherd/error.h"

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

std::string read_bytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string bytes{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (!file.is_open() || file.bad()) {
    throw sherd::Error(sherd::ExitCode::InputMissing, path + ": cannot be read");
  }
  return bytes;
}

}  // namespace

std::vector<sherd::SafetensorsSpec> export_specs(const model::CausalLmImpl& model,
                                                 c10::ScalarType dtype) {
  std::vector<sherd::SafetensorsSpec> specs;
  for (const auto& parameter : model.named_parameters()) {
    specs.push_back({parameter.key(), dtype, parameter.value().sizes().vec()});
  }
  return specs;
}

void copy_config_and_tokenizer(const std::string& source_folder, const std::string& out_folder,
                               c10::ScalarType dtype) {
  auto config = read_json_object(source_folder + "/config.json");
  for (const char* name : kCopied) {
    const std::string source = source_folder + "/" + name;
    if (std::filesystem::exists(source)) {
      write_durable_file(out_folder + "/" + name, read_bytes(source));
    }
  }
  const bool new_spelling = config.contains("dtype");
  if (new_spelling) {
    config["dtype"] = name_of_dtype(dtype);
  }
  if (config.contains("torch_dtype") || !new_spelling) {
    config["torch_dtype"] = name_of_dtype(dtype);
  }
  write_durable_file(out_folder + "/config.json", config.dump(2) + "\n");
}

}  // namespace llm::io
