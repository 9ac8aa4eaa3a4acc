#include "llm/eval/prediction_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/temp_folder.h"
#include "tests/support/test_data.h"

namespace llm::eval {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) {
    names.push_back(entry.path().filename().string());
  }
  return names;
}

TEST(PredictionFiles, AreNamedByStepAndFile) {
  EXPECT_EQ(predictions_name(120, 0), "predictions-120");
  EXPECT_EQ(predictions_name(0, 2), "predictions-0-2");
  const sherd::test::TempFolder folder;
  const std::vector<eval::Prediction> one = {{"a", "Who?", {"I"}, "I", {1, 1}}};
  write_predictions(folder.path(), predictions_name(7, 0), one);
  EXPECT_THAT(names_in(folder.path()),
              testing::UnorderedElementsAre("predictions-7.json", "predictions-7.jsonl"));
  EXPECT_EQ(sherd::test::bytes_of(folder.path() / "predictions-7.json"), "{\n \"a\": \"I\"\n}\n");
}

TEST(PredictionFiles, OfLaterStepsAreRemovedAndNothingElse) {
  const sherd::test::TempFolder folder;
  for (const char* name :
       {"predictions-0.json", "predictions-6.json", "predictions-7.json", "predictions-12-1.jsonl",
        "predictions-9.txt", "predictions-mine.json", "predictions.json", "log.jsonl"}) {
    static_cast<void>(folder.write(name, ""));
  }
  remove_predictions_after(6, folder.path());
  EXPECT_THAT(
      names_in(folder.path()),
      testing::UnorderedElementsAre("predictions-0.json", "predictions-6.json", "predictions-9.txt",
                                    "predictions-mine.json", "predictions.json", "log.jsonl"));
  remove_predictions_after(-1, folder.path());
  EXPECT_FALSE(fs::exists(folder.path() / "predictions-0.json"));
}

}  // namespace
}  // namespace llm::eval
