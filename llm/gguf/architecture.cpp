#include "llm/gguf/architecture.h"

#include <algorithm>
#include <string_view>

#include <fmt/core.h>

#include "sherd/error.h"

namespace llm::gguf {

const Architecture& llama_architecture();  // of the files beside this
const Architecture& qwen2_architecture();
const Architecture& qwen3_architecture();
const Architecture& phi3_architecture();
const Architecture& gemma3_architecture();
const Architecture& bloom_architecture();
const Architecture& gpt2_architecture();

namespace {

const std::vector<const Architecture*>& architectures() {
  static const std::vector<const Architecture*> all = {
      &llama_architecture(),  &qwen2_architecture(), &qwen3_architecture(), &phi3_architecture(),
      &gemma3_architecture(), &bloom_architecture(), &gpt2_architecture()};
  return all;
}

std::string joined_names(const std::vector<const char*>& names) {
  std::string text;
  for (const char* name : names) {
    text += (text.empty() ? "" : ", ") + std::string(name);
  }
  return text;
}

// A name under another pattern; nothing if it is not of the first.
std::optional<std::string> renamed(std::string_view name, std::string_view from,
                                   const std::string& to) {
  const std::size_t layer = from.find("{}");
  if (layer == std::string_view::npos) {
    return name == from ? std::optional(to) : std::nullopt;
  }
  const std::string_view before = from.substr(0, layer);
  const std::string_view after = from.substr(layer + 2);
  if (name.size() <= before.size() + after.size() || !name.starts_with(before) ||
      !name.ends_with(after)) {
    return std::nullopt;
  }
  const std::string_view number =
      name.substr(before.size(), name.size() - before.size() - after.size());
  const bool is_number =
      number.size() <= 4 && (number == "0" || number.front() != '0') &&
      std::all_of(number.begin(), number.end(), [](char c) { return '0' <= c && c <= '9'; });
  if (!is_number) {
    return std::nullopt;
  }
  std::string found = to;
  return found.replace(found.find("{}"), 2, number);
}

// A name without ".weight" or ".bias", and that ending; nothing for another.
std::optional<std::pair<std::string, std::string>> module_and_ending(const std::string& name) {
  for (const char* ending : {".weight", ".bias"}) {
    if (name.ends_with(ending)) {
      return std::pair(name.substr(0, name.size() - std::string_view(ending).size()),
                       std::string(ending));
    }
  }
  return std::nullopt;
}

}  // namespace

void SourceModel::refuse(const std::string& what) const {
  throw sherd::Error(sherd::ExitCode::BadData,
                     fmt::format("{}: {}: llama.cpp cannot compute that, so it is not written as "
                                 "GGUF. Export a Hugging Face folder, with --out",
                                 place, what));
}

KeyWriter::KeyWriter(const char* architecture) : prefix_(std::string(architecture) + ".") {}

void KeyWriter::whole(const std::string& key, std::int64_t value) {
  keys_.push_back({prefix_ + key, uint32_value(value)});
}

void KeyWriter::number(const std::string& key, double value) {
  keys_.push_back({prefix_ + key, float32_value(value)});
}

void KeyWriter::text(const std::string& key, const std::string& value) {
  keys_.push_back({prefix_ + key, text_value(value)});
}

KeyReader::KeyReader(const GgufFile& file, const char* architecture)
    : file_(file), prefix_(std::string(architecture) + ".") {}

std::int64_t KeyReader::whole(const std::string& key) const {
  const auto found = file_.whole(prefix_ + key);
  if (!found) {
    refuse(key, "is missing");
  }
  if (*found < 1) {
    refuse(key, fmt::format("must be at least 1, found {}", *found));
  }
  return *found;
}

std::int64_t KeyReader::whole(const std::string& key, std::int64_t fallback) const {
  return has(key) ? whole(key) : fallback;
}

double KeyReader::number(const std::string& key) const {
  const auto found = file_.number(prefix_ + key);
  if (!found) {
    refuse(key, "is missing");
  }
  return *found;
}

double KeyReader::number(const std::string& key, double fallback) const {
  return has(key) ? number(key) : fallback;
}

std::optional<std::string> KeyReader::text(const std::string& key) const {
  return file_.text(prefix_ + key);
}

bool KeyReader::has(const std::string& key) const {
  return file_.find(prefix_ + key) != nullptr;
}

void KeyReader::refuse(const std::string& key, const std::string& what) const {
  file_.refuse(fmt::format("the key \"{}{}\" {}", prefix_, key, what));
}

const Architecture* architecture_of_model(const std::string& model_type) {
  for (const Architecture* one : architectures()) {
    if (std::find(one->model_types.begin(), one->model_types.end(), model_type) !=
        one->model_types.end()) {
      return one;
    }
  }
  return nullptr;
}

const Architecture* architecture_named(const std::string& name) {
  const auto& all = architectures();
  const auto found =
      std::find_if(all.begin(), all.end(), [&](const auto* one) { return name == one->name; });
  return found == all.end() ? nullptr : *found;
}

std::string written_model_types() {
  std::vector<const char*> names;
  for (const Architecture* one : architectures()) {
    names.insert(names.end(), one->model_types.begin(), one->model_types.end());
  }
  return joined_names(names);
}

std::string read_architectures() {
  std::vector<const char*> names;
  for (const Architecture* one : architectures()) {
    names.push_back(one->name);
  }
  return joined_names(names);
}

std::optional<TensorInfo> info_of_parameter(const Architecture& architecture,
                                            const std::string& parameter, Change& change) {
  const auto parts = module_and_ending(parameter);
  for (const TensorName& one : architecture.tensors) {
    const auto found = parts ? renamed(parts->first, one.module, one.gguf) : std::nullopt;
    if (found) {
      change = one.change;
      return TensorInfo{.name = *found + parts->second};
    }
  }
  return std::nullopt;
}

std::optional<std::string> parameter_of_tensor(const Architecture& architecture,
                                               const std::string& tensor, Change& change) {
  const auto parts = module_and_ending(tensor);
  for (const TensorName& one : architecture.tensors) {
    const auto found = parts ? renamed(parts->first, one.gguf, one.module) : std::nullopt;
    if (found) {
      change = one.change;
      return *found + parts->second;
    }
  }
  return std::nullopt;
}

}  // namespace llm::gguf
