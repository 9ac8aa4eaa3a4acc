#pragma once
// Parameters of adapters, known by their names.

#include <string>
#include <string_view>

namespace llm::model {

inline constexpr std::string_view kLoraA = ".lora_A.weight";  ///< [rank, inputs]
inline constexpr std::string_view kLoraB = ".lora_B.weight";  ///< [outputs, rank]

/// True if a parameter is one of an adapter's (sherd::lora()), and none of the model's own.
[[nodiscard]] inline bool is_of_adapter(std::string_view parameter) {
  return parameter.ends_with(kLoraA) || parameter.ends_with(kLoraB);
}

}  // namespace llm::model
