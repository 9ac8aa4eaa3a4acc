#pragma once
// Short runs that are evaluated often, what they leave, and what models answer.

#include <algorithm>
#include <memory>
#include <sstream>

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

/// Evaluations whose answers take seconds.
inline const Arguments kGenerating = {"--data.eval",
                                      SHERD_TEST_SOURCE_DIR "/recipes/data/squad-100-heldout.json",
                                      "--eval.generate", "true"};

/// `eval` of a model on six questions.
inline const Arguments kEvaluation = {
    "eval",    "--model", kModel,   "--data",      kQuestions,     "--limit", "6",
    "--batch", "3",       "--json", "--loss-only", "--max-length", "128"};

/// Evaluations that are no improvement, whatever they find, but for the first.
inline Arguments no_improvement(const std::string& patience) {
  return {"--eval.patience", patience, "--eval.min_delta", "1000"};
}

/// A run of three steps, with an evaluation and a checkpoint after each.
class EvalRun : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = std::make_unique<TempFolder>();
    output_ = folder_->path() / "run";
    expect_code(0, evaluated(output_, "3", "1 steps") +
                       Arguments{"--checkpoint.every", "1 steps", "--checkpoint.keep", "9",
                                 "--eval.batch", "3", "--optim.lr", "1e-2"});
  }
  static void TearDownTestSuite() { folder_.reset(); }

  static nlohmann::json evaluate(const Arguments& flags) {
    const Ended ended = expect_code(0, Arguments{"eval", "--loss-only", "--json"} + flags);
    return nlohmann::json::parse(ended.out);
  }
  static double logged_loss(int step) {
    return events(output_, "evaluation").at(static_cast<size_t>(step - 1)).at("loss");
  }

  // NOLINTBEGIN(cppcoreguidelines-avoid-non-const-global-variables)
  static inline std::unique_ptr<TempFolder> folder_;
  static inline fs::path output_;
  // NOLINTEND(cppcoreguidelines-avoid-non-const-global-variables)
};

inline const Arguments kGenerate = {"generate", kModel, "--max-new-tokens", "12"};
inline const std::vector<std::string> kPrompts = {"Once upon a time", "Tom",
                                                  "One day, a little girl named", "The dog",
                                                  "Lily and Ben went to the park. They"};

/// kPrompts, one per line.
inline std::string prompts_file(const TempFolder& folder) {
  std::string text;
  for (const std::string& prompt : kPrompts) {
    text += prompt + "\n";
  }
  return folder.write("prompts.txt", text).string();
}

/// What `generate` printed for each of kPrompts.
inline std::vector<std::string> completions(const std::string& lines) {
  std::vector<std::string> found;
  std::istringstream stream(lines);
  for (std::string line; std::getline(stream, line);) {
    const auto one = nlohmann::json::parse(line);
    EXPECT_EQ(one.at("prompt"), kPrompts.at(found.size()));
    found.push_back(one.at("completion"));
  }
  return found;
}

}  // namespace sherd::test
