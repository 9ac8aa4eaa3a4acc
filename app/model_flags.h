#pragma once
// The two flags that select a verb's model.

#include <string>
#include <utility>

#include <CLI/CLI.hpp>

namespace app {

/// Takes `--checkpoint FOLDER` alone as the model. Throws CLI::RequiredError if both are missing.
inline void take_model(std::string& model, std::string& checkpoint) {
  if (model.empty() && checkpoint.empty()) {
    throw CLI::RequiredError("--model");
  }
  if (model.empty()) {
    std::swap(model, checkpoint);
  }
}

}  // namespace app
