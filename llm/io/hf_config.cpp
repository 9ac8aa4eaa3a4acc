#include "llm/io/hf_config.h"

#include <array>
#include <filesystem>
#include <utility>

#include <c10/util/Exception.h>

#include "files/json.h"
#include "llm/families/json_fields.h"
#include "sherd/error.h"

namespace llm::io {
namespace {

using families::JsonFields;

constexpr std::array<std::pair<const char*, c10::ScalarType>, 4> kDtypes = {
    {{"float32", c10::ScalarType::Float},
     {"bfloat16", c10::ScalarType::BFloat16},
     {"float16", c10::ScalarType::Half},
     {"float64", c10::ScalarType::Double}}};

// "llama" and "bloom"
std::string implemented_types() {
  std::string text;
  const auto& all = families::all_families();
  for (size_t i = 0; i < all.size(); ++i) {
    text += (i == 0 ? "" : i + 1 == all.size() ? " and " : ", ");
    text += std::string("\"") + all[i]->model_type + '"';
  }
  return text;
}

const families::Family& family_of(const JsonFields& fields) {
  const auto model_type = fields.text("model_type");
  if (!model_type) {
    fields.fail("model_type", "is missing");
  }
  const families::Family* family = families::find_family(*model_type);
  if (family == nullptr) {
    fields.fail("model_type",
                '"' + *model_type + "\" is not implemented, only " + implemented_types());
  }
  return *family;
}

std::optional<c10::ScalarType> read_dtype(const JsonFields& fields) {
  std::optional<c10::ScalarType> dtype;
  for (const char* field : {"torch_dtype", "dtype"}) {
    const auto name = fields.text(field);
    if (!name) {
      continue;
    }
    const auto found = dtype_of_name(*name);
    if (!found) {
      fields.fail(field,
                  '"' + *name + "\" is not implemented, only float32, bfloat16, float16, float64");
    }
    if (dtype && dtype != found) {
      fields.fail(field, '"' + *name + "\" contradicts \"torch_dtype\"");
    }
    dtype = found;
  }
  return dtype;
}

}  // namespace

nlohmann::ordered_json read_config_json(const std::string& path) {
  try {
    return sherd::files::read_json_object<nlohmann::ordered_json>(
        path, sherd::files::RepeatedFields::Refuse);
  } catch (const sherd::Error& error) {
    if (error.code() != sherd::ExitCode::InputMissing) {
      throw;
    }
    throw sherd::Error(error.code(),
                       error.what() + std::string("; a Hugging Face model folder has this file"));
  }
}

HfConfig read_hf_config(const std::string& path) {
  const auto json = read_config_json(path);
  const JsonFields fields(json, path);
  const families::Family& family = family_of(fields);
  return {.family = &family, .shape = family.parse(fields), .dtype = read_dtype(fields)};
}

HfConfig read_model_folder_config(const std::string& folder) {
  if (!std::filesystem::is_directory(folder)) {
    throw sherd::Error(sherd::ExitCode::InputMissing,
                       folder +
                           ": no such folder; expected a Hugging Face model folder with "
                           "config.json, model.safetensors and tokenizer.json");
  }
  return read_hf_config(folder + "/config.json");
}

model::CausalLm build_model(const HfConfig& config) {
  return config.family->build(config.shape);
}

std::optional<c10::ScalarType> dtype_of_name(const std::string& name) {
  for (const auto& [known, dtype] : kDtypes) {
    if (name == known) {
      return dtype;
    }
  }
  return std::nullopt;
}

std::string name_of_dtype(c10::ScalarType dtype) {
  for (const auto& [name, known] : kDtypes) {
    if (dtype == known) {
      return name;
    }
  }
  TORCH_CHECK(false, "[name_of_dtype] ", dtype, " is no dtype of model weights");
}

}  // namespace llm::io
