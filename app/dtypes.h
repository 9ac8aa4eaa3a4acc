#pragma once
// Names of dtypes in flags: those of configuration files, and the short ones.

#include <map>
#include <string>
#include <vector>

#include <c10/core/ScalarType.h>

namespace app {

/// "bf16" and "bfloat16", "fp16" and "float16", "fp32" and "float32".
inline const std::map<std::string, c10::ScalarType>& dtypes_by_name() {
  static const std::map<std::string, c10::ScalarType> dtypes = {
      {"fp32", c10::kFloat},    {"bf16", c10::kBFloat16},     {"fp16", c10::kHalf},
      {"float32", c10::kFloat}, {"bfloat16", c10::kBFloat16}, {"float16", c10::kHalf}};
  return dtypes;
}

/// The names that flags show; the long names are accepted too.
inline const std::vector<std::string>& dtype_words() {
  static const std::vector<std::string> words = {"bf16", "fp16", "fp32"};
  return words;
}

}  // namespace app
