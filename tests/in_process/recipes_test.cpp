// The recipes that ship for each kind of data: they teach what they were not trained on.

#include <string>

#include "tests/in_process/run_program.h"

namespace sherd::test {
namespace {

using nlohmann::json;
using testing::HasSubstr;

struct StoryRecipe {
  std::string name;
  int records;  // of its file
};

class StoryRecipes : public testing::TestWithParam<StoryRecipe> {};

// What stands before " records" on the line that begins so.
int records_on_line(const std::string& text, const std::string& begin) {
  const std::size_t line = text.find("\n" + begin);
  const std::size_t end = text.find(" records, ", line);
  const std::size_t number = text.rfind(' ', end - 1);
  return line == std::string::npos || end == std::string::npos
             ? 0
             : std::stoi(text.substr(number + 1, end - number - 1));
}

TEST_P(StoryRecipes, LowerTheLossOfRecordsThatWereNotTrainedOn) {
  const TempFolder folder;
  const fs::path output = folder.path() / "run";
  const Ended ended =
      expect_code(0, {"train", SHERD_TEST_SOURCE_DIR "/recipes/" + GetParam().name + ".toml",
                      "--train.output", output, "--data.cache", "none", "--device.kind", "cpu"});
  const int trained = records_on_line("\n" + ended.out, "data: ");
  const int kept = records_on_line("\n" + ended.out, "evaluation data: ");
  EXPECT_GE(kept, 6) << ended.out;
  EXPECT_EQ(trained + kept, GetParam().records) << ended.out;
  const auto summary = json::parse(read_file(output / "summary.json"));
  EXPECT_LE(summary.at("eval_loss").get<double>(),
            0.8 * summary.at("eval_loss_at_start").get<double>())
      << ended.out;
}

INSTANTIATE_TEST_SUITE_P(Kinds, StoryRecipes,
                         testing::Values(StoryRecipe{"chat", 120},
                                         StoryRecipe{"story-instructions", 160},
                                         StoryRecipe{"story-chat-parquet", 120},
                                         StoryRecipe{"story-questions-csv", 160},
                                         StoryRecipe{"story-texts", 120}),
                         [](const auto& one) {
                           std::string name = one.param.name;
                           std::erase(name, '-');
                           return name;
                         });

// A tenth of the recipe's steps.
TEST(LoraRecipe, LearnsItsQuestions) {
  const TempFolder folder;
  const fs::path output = folder.path() / "run";
  expect_code(0, {"train", SHERD_TEST_SOURCE_DIR "/recipes/stories260k-squad-32-lora.toml",
                  "--train.output", output, "--data.cache", "none", "--device.kind", "cpu",
                  "--train.epochs", "4", "--eval.generate", "false", "--eval.at_start", "true"});
  const auto summary = json::parse(read_file(output / "summary.json"));
  EXPECT_LE(summary.at("eval_loss").get<double>(),
            0.5 * summary.at("eval_loss_at_start").get<double>());
  EXPECT_TRUE(fs::exists(output / "export/adapter_model.safetensors"));
}

}  // namespace
}  // namespace sherd::test
