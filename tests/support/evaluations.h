#pragma once
// Short runs that are evaluated often, and what they leave.

#include <algorithm>

#include "tests/support/training.h"

namespace sherd::test {

/// The lines of a run's log with this event.
inline std::vector<nlohmann::json> events(const fs::path& output, const std::string& event) {
  std::vector<nlohmann::json> found;
  std::ifstream file(output / "log.jsonl");
  for (std::string line; std::getline(file, line);) {
    auto record = nlohmann::json::parse(line);
    if (record.value("event", "") == event) {
      found.push_back(std::move(record));
    }
  }
  return found;
}

inline std::vector<int> steps_of(const fs::path& output, const std::string& event) {
  std::vector<int> steps;
  for (const auto& record : events(output, event)) {
    steps.push_back(record.at("step").get<int>());
  }
  return steps;
}

inline std::vector<std::string> checkpoint_names(const fs::path& output) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(output / "checkpoints")) {
    names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

inline nlohmann::json summary(const fs::path& output) {
  return nlohmann::json::parse(read_file(output / "summary.json"));
}

/// `train`, evaluated on eight questions every so often.
inline Arguments evaluated(const fs::path& output, const std::string& steps,
                           const std::string& every) {
  return train(output, steps) + Arguments{"--data.eval",  kQuestions, "--data.eval_limit",   "8",
                                          "--eval.every", every,      "--train.micro_batch", "6"};
}

/// Answers of one token, none of which is right: of equals the first evaluation is the best.
inline const Arguments kFirstIsBest = {"--eval.generate",          "true", "--eval.best_by", "em",
                                       "--data.max_answer_tokens", "1"};

/// Evaluations that are no improvement, whatever they find, but for the first.
inline Arguments no_improvement(const std::string& patience) {
  return {"--eval.patience", patience, "--eval.min_delta", "1000"};
}

}  // namespace sherd::test
