#include "llm/gguf/import_gguf.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <set>
#include <system_error>
#include <utility>

#include <ATen/TensorOperators.h>
#include <fmt/core.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "files/folder.h"
#include "files/output.h"
#include "files/strict_json.h"
#include "llm/gguf/architecture.h"
#include "llm/gguf/changes.h"
#include "llm/gguf/gguf_file.h"
#include "llm/gguf/tokenizer_folder.h"
#include "llm/io/export.h"
#include "llm/io/hf_config.h"
#include "llm/io/weight_files.h"
#include "llm/text/tokenizer.h"
#include "sherd/error.h"
#include "sherd/fully_shard.h"

namespace llm::gguf {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

// The folder under another name until it is complete.
class PartialFolder {
 public:
  explicit PartialFolder(const std::string& folder)
      : folder_(fs::absolute(folder).lexically_normal().string()) {
    while (folder_.size() > 1 && folder_.back() == '/') {
      folder_.pop_back();
    }
    std::error_code ignored;
    if (fs::exists(folder_, ignored) &&
        (!fs::is_directory(folder_, ignored) || !fs::is_empty(folder_, ignored))) {
      throw sherd::Error(sherd::ExitCode::CannotWrite,
                         "'" + folder +
                             "' exists and is no empty folder: an import is not mixed with other "
                             "files. Give a new folder, or empty this one.");
    }
    path_ = folder_ + ".partial-" + std::to_string(getpid());
    sherd::files::make_folder(path_);
  }
  PartialFolder(const PartialFolder&) = delete;
  PartialFolder& operator=(const PartialFolder&) = delete;
  ~PartialFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  void finish() { sherd::files::replace_folder(path_, folder_); }
  [[nodiscard]] const std::string& path() const { return path_; }
  void write(const char* name, const Json& content, int indent = 2) const {
    sherd::files::write_file(path_ + "/" + name, content.dump(indent) + "\n");
  }

 private:
  std::string folder_;
  std::string path_;
};

const Architecture& architecture_of(const GgufFile& file) {
  const std::string name = file.text("general.architecture").value_or("");
  const Architecture* found = architecture_named(name);
  if (found == nullptr) {
    file.refuse("\"general.architecture\" is \"" + name + "\", only " + read_architectures() +
                " are read");
  }
  if (const auto parts = file.whole("split.count"); parts && *parts > 1) {
    file.refuse(
        fmt::format("is one of {} parts of a model. Join them first: llama-gguf-split "
                    "--merge FIRST_PART WHOLE",
                    *parts));
  }
  return *found;
}

void refuse_unknown_keys(const GgufFile& file, const Architecture& architecture) {
  const std::string prefix = std::string(architecture.name) + ".";
  for (const KeyValue& one : file.keys()) {
    const bool is_known = !one.key.starts_with(prefix) ||
                          std::any_of(architecture.keys.begin(), architecture.keys.end(),
                                      [&](const char* key) { return one.key == prefix + key; });
    if (!is_known) {
      file.refuse("the key " + sherd::files::in_quotes(one.key) +
                  " is not implemented: it could change what the model computes");
    }
  }
}

// A tensor of the file and the parameter that it becomes.
struct ReadTensor {
  const TensorInfo* info;
  Change change;
};

using ReadTensors = std::map<std::string, ReadTensor>;

ReadTensors parameters_of(const GgufFile& file, const Architecture& architecture) {
  ReadTensors found;
  for (const TensorInfo& info : file.tensors()) {
    Change change = Change::None;
    const auto parameter = parameter_of_tensor(architecture, info.name, change);
    if (parameter) {
      found.emplace(*parameter, ReadTensor{&info, change});
    } else if (std::find(architecture.rope_tensors.begin(), architecture.rope_tensors.end(),
                         info.name) == architecture.rope_tensors.end()) {
      file.refuse("tensor " + sherd::files::in_quotes(info.name) + " is not implemented in \"" +
                  architecture.name + '"');
    }
  }
  return found;
}

std::int64_t rows_of_embedding(const GgufFile& file) {
  const TensorInfo* embedding = file.find_tensor("token_embd.weight");
  if (embedding == nullptr) {
    file.refuse("tensor \"token_embd.weight\" is missing");
  }
  const std::int64_t rows = embedding->shape.front();
  if (const auto tokens = std::ssize(file.texts("tokenizer.ggml.tokens")); tokens > rows) {
    file.refuse(fmt::format("there are {} tokens, and the embedding has {} rows", tokens, rows));
  }
  return rows;
}

// F16 and BF16 stay; a folder with several says float32.
const char* dtype_of(const ReadTensors& tensors) {
  std::set<TensorType> types;
  for (const auto& [name, tensor] : tensors) {
    if (tensor.info->shape.size() > 1) {
      types.insert(tensor.info->type);
    }
  }
  if (types == std::set{TensorType::F16}) {
    return "float16";
  }
  return types == std::set{TensorType::BF16} ? "bfloat16" : "float32";
}

Json config_of(const GgufFile& file, const Architecture& architecture, const ReadTensors& tensors,
               const Json& ids) {
  Json config = {{"architectures", Json::array({architecture.model_class})},
                 {"model_type", architecture.model_types.front()}};
  architecture.read_keys(KeyReader(file, architecture.name), config);
  config["vocab_size"] = rows_of_embedding(file);
  config["tie_word_embeddings"] = file.find_tensor("output.weight") == nullptr;
  config.update(ids);
  config["torch_dtype"] = dtype_of(tensors);
  config["use_cache"] = true;
  return config;
}

// What a written file of the folder means. A fault of it is one of the GGUF file's keys.
template <class Read>
auto read_back(const GgufFile& file, const PartialFolder& folder, const char* name, Read read) {
  try {
    return read(folder.path());
  } catch (const sherd::Error& error) {
    const std::string place = folder.path() + "/" + name + ": ";
    std::string what = error.what();
    if (const std::size_t at = what.find(place); at != std::string::npos) {
      what.erase(at, place.size());
    }
    throw sherd::Error(error.code(), file.path() + ": its keys mean a " + name + " with " + what);
  }
}

// Before the weights, which take long.
void write_tokenizer(const GgufFile& file, const TokenizerFiles& tokenizer,
                     const PartialFolder& folder) {
  folder.write("generation_config.json", tokenizer.generation_config);
  folder.write("tokenizer.json", tokenizer.tokenizer, /*indent=*/-1);
  folder.write("tokenizer_config.json", tokenizer.tokenizer_config);
  folder.write("special_tokens_map.json", tokenizer.special_tokens);
  static_cast<void>(read_back(file, folder, "tokenizer.json", [](const std::string& path) {
    return text::Tokenizer::from_folder(path);
  }));
}

// The tensors of a model of that shape, in its order, each in the dtype of the file. Refuses a
// tensor that is missing, left over, or of another shape.
std::vector<sherd::SafetensorsSpec> checked_specs(const GgufFile& file, const io::HfConfig& config,
                                                  const ReadTensors& tensors) {
  auto model = sherd::on_meta([&] { return io::build_model(config); });
  auto specs = io::export_specs(*model, c10::kFloat);
  const Heads heads{config.shape.heads, config.shape.key_heads};
  for (sherd::SafetensorsSpec& spec : specs) {
    const auto found = tensors.find(spec.name);
    if (found == tensors.end()) {
      file.refuse("the tensor of parameter \"" + spec.name + "\" is missing");
    }
    const TensorInfo& info = *found->second.info;
    std::vector<std::int64_t> shape = info.shape;
    if (found->second.change == Change::Transposed) {
      std::reverse(shape.begin(), shape.end());
    }
    if (shape != spec.shape || !can_change(shape, found->second.change, heads)) {
      file.refuse(fmt::format("tensor \"{}\" has shape {}, and a model of these keys has {}",
                              info.name, Json(info.shape).dump(), Json(spec.shape).dump()));
    }
    spec.dtype = info.type == TensorType::F16    ? c10::kHalf
                 : info.type == TensorType::BF16 ? c10::kBFloat16
                                                 : c10::kFloat;
  }
  for (const auto& [name, tensor] : tensors) {
    if (std::none_of(specs.begin(), specs.end(),
                     [&, &wanted = name](const auto& spec) { return spec.name == wanted; })) {
      file.refuse("tensor " + sherd::files::in_quotes(tensor.info->name) +
                  " is not one of a model of these keys");
    }
  }
  return specs;
}

}  // namespace

ImportOutcome import_gguf(const ImportOptions& options) {
  const GgufFile file(options.file);
  const Architecture& architecture = architecture_of(file);
  refuse_unknown_keys(file, architecture);
  const ReadTensors tensors = parameters_of(file, architecture);
  const KeyReader keys(file, architecture.name);
  const TokenizerFiles tokenizer = tokenizer_files(file, keys.whole("context_length"));
  const Json config_json = config_of(file, architecture, tensors, tokenizer.ids);

  PartialFolder folder(options.folder);
  folder.write("config.json", config_json);
  const io::HfConfig config = read_back(file, folder, "config.json", [](const std::string& path) {
    return io::read_model_folder_config(path);
  });
  const auto specs = checked_specs(file, config, tensors);
  write_tokenizer(file, tokenizer, folder);
  io::WeightFiles weights(folder.path(), specs);
  const Heads heads{config.shape.heads, config.shape.key_heads};
  for (const sherd::SafetensorsSpec& spec : specs) {
    const ReadTensor& tensor = tensors.at(spec.name);
    weights.write(spec.name, from_gguf(file.read(*tensor.info), tensor.change, heads));
  }
  weights.finish();
  folder.finish();
  return {architecture.name, std::ssize(specs), weights.file_bytes()};
}

}  // namespace llm::gguf
