#include "safetensors/scalar_types.h"

#include <array>
#include <string_view>
#include <utility>

namespace sherd::detail {
namespace {

constexpr std::array<std::pair<std::string_view, at::ScalarType>, 10> kScalarTypes = {{
    {"F64", at::ScalarType::Double},
    {"F32", at::ScalarType::Float},
    {"F16", at::ScalarType::Half},
    {"BF16", at::ScalarType::BFloat16},
    {"I64", at::ScalarType::Long},
    {"I32", at::ScalarType::Int},
    {"I16", at::ScalarType::Short},
    {"I8", at::ScalarType::Char},
    {"U8", at::ScalarType::Byte},
    {"BOOL", at::ScalarType::Bool},
}};

}  // namespace

at::ScalarType scalar_type_of(const TensorDtype& dtype) {
  for (const auto& [name, type] : kScalarTypes) {
    if (name == dtype.name) {
      return type;
    }
  }
  return at::ScalarType::Undefined;
}

const TensorDtype* dtype_of(at::ScalarType type) {
  for (const auto& [name, known] : kScalarTypes) {
    if (known == type) {
      return find_dtype(name);
    }
  }
  return nullptr;
}

}  // namespace sherd::detail
