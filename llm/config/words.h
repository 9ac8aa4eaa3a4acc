#pragma once
// The words that the configuration has for choices which flags and messages name too.

#include <string>
#include <vector>

#include "llm/config/run_config.h"
#include "llm/config/value.h"

namespace llm::config {

[[nodiscard]] const std::vector<Word<Strategy>>& strategy_words();
[[nodiscard]] const std::vector<Word<ParamDtype>>& param_dtype_words();
[[nodiscard]] const std::vector<Word<MasterFormat>>& master_words();
[[nodiscard]] const std::vector<Word<AttentionKernel>>& attention_words();

/// The word of `value`, which has one.
template <class Enum>
[[nodiscard]] const std::string& word_of(Enum value, const std::vector<Word<Enum>>& words) {
  std::size_t position = 0;
  while (words[position].value != value) {
    ++position;
  }
  return words[position].word;
}

}  // namespace llm::config
