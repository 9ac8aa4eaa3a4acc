#pragma once
// The two flags that say which model a verb takes.

#include <string>
#include <utility>

#include <CLI/CLI.hpp>

namespace app {

/// `--checkpoint FOLDER` alone names the model too. Throws CLI::RequiredError where nothing does.
inline void take_model(std::string& model, std::string& checkpoint) {
  if (model.empty() && checkpoint.empty()) {
    throw CLI::RequiredError("--model");
  }
  if (model.empty()) {
    std::swap(model, checkpoint);
  }
}

}  // namespace app
