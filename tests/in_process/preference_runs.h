#pragma once
// Short runs on preference pairs, and what they leave.

#include <string>

#include "tests/in_process/run_program.h"

namespace sherd::test {

inline const std::string kRecipe = SHERD_TEST_SOURCE_DIR "/recipes/preferences.toml";
inline const std::string kPairs = SHERD_TEST_SOURCE_DIR "/recipes/data/preferences.jsonl";

/// A verb on the recipe for pairs.
inline Arguments recipe(const std::string& verb, const fs::path& output, const fs::path& cache) {
  return Arguments{verb,           kRecipe,       "--train.output", output.string(),
                   "--data.cache", cache.string()} +
         kInFloat32;
}

/// A figure of a step or an evaluation.
inline double figure(const nlohmann::json& record, const char* name) {
  return record.at("figures").at(name).get<double>();
}

}  // namespace sherd::test
