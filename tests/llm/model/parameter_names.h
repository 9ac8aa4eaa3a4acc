#pragma once
// The names that a model's parameters have.

#include <string>
#include <vector>

#include "llm/model/causal_lm.h"

namespace llm::model {

inline std::vector<std::string> names_of(const CausalLm& model) {
  return model->named_parameters().keys();
}

}  // namespace llm::model
