#include "llm/io/hf_config.h"

#include <array>
#include <utility>

#include <c10/util/Exception.h>

#include "files/json.h"
#include "llm/io/bloom_config.h"
#include "llm/io/json_fields.h"
#include "llm/io/llama_config.h"
#include "sherd/error.h"

namespace llm::io {
namespace {

constexpr std::array<std::pair<const char*, c10::ScalarType>, 4> kDtypes = {
    {{"float32", c10::ScalarType::Float},
     {"bfloat16", c10::ScalarType::BFloat16},
     {"float16", c10::ScalarType::Half},
     {"float64", c10::ScalarType::Double}}};

decltype(HfConfig::shape) read_shape(const std::string& model_type, const JsonFields& fields) {
  if (model_type == "llama") {
    return read_llama_config(fields);
  }
  if (model_type == "bloom") {
    return read_bloom_config(fields);
  }
  fields.fail("model_type",
              '"' + model_type + "\" is not implemented, only \"llama\" and \"bloom\"");
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
  const auto model_type = fields.text("model_type");
  if (!model_type) {
    fields.fail("model_type", "is missing");
  }
  return {.model_type = *model_type,
          .shape = read_shape(*model_type, fields),
          .dtype = read_dtype(fields)};
}

double initializer_range(const HfConfig& config) {
  return std::visit([](const auto& shape) { return shape.initializer_range; }, config.shape);
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
