// How many steps a run has, and how long a sample may be.

#include "llm/inputs/run_data.h"

#include <mutex>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "llm/setup/load_data.h"
#include "llm/setup/load_model.h"
#include "llm/track/progress.h"
#include "tests/llm/text/read_squad.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_folder.h"

namespace llm::setup {
namespace {

using sherd::ExitCode;
using sherd::test::expect_error;
using testing::HasSubstr;
using testing::Not;

TEST(RunLength, FollowsFromEpochsOrSteps) {
  config::RunConfig config;
  config.train.global_batch = 12;
  config.train.epochs = 2;
  const inputs::RunLength epochs = inputs::run_length(config, 32);
  EXPECT_EQ(epochs.steps_per_epoch, 3);
  EXPECT_EQ(epochs.total_steps, 6);
  config.train.max_steps = 5;
  EXPECT_EQ(inputs::run_length(config, 32).total_steps, 5);
}

TEST(RunLength, IsNoShorterThanTheWarmUp) {
  config::RunConfig config;
  config.train.global_batch = 12;
  config.schedule.warmup = {3, 0};
  EXPECT_NO_THROW(static_cast<void>(inputs::run_length(config, 32)));
  config.schedule.warmup = {4, 0};
  expect_error(
      [&] { static_cast<void>(inputs::run_length(config, 32)); }, ExitCode::Usage,
      {"schedule.warmup = \"4 steps\" is longer than the run, which has 3 steps", "32 samples"});
}

TEST(RunLength, CountsRowsWhereSamplesArePacked) {
  config::RunConfig config;
  config.train.global_batch = 12;
  config.data.packing = config::Packing::FirstFit;
  config.schedule.warmup = {4, 0};
  expect_error([&] { static_cast<void>(inputs::run_length(config, 20)); }, ExitCode::Usage,
               {"which has 2 steps", "20 rows"});
}

TEST(SampleLength, IsAtMostTheContext) {
  EXPECT_EQ(inputs::sample_length(0, 512), 512);
  EXPECT_EQ(inputs::sample_length(128, 512), 128);
  EXPECT_EQ(inputs::sample_length(4096, 512), 512);
  EXPECT_EQ(inputs::length_remark("data.max_length", 512, 512), "");
  EXPECT_EQ(inputs::length_remark("data.max_length", 4096, 512),
            "data.max_length = 4096 is more than the model's context: 512 tokens are used");
}

// Files that others replace as soon as the run says that it has read the first.
TEST(RunData, ComesFromOneReadOfEachFile) {
  const sherd::test::TempFolder folder;
  const std::filesystem::path source = SHERD_TEST_SOURCE_DIR "/recipes/data/squad-32.json";
  const auto training = folder.path() / "train.json";
  const auto heldout = folder.path() / "eval.json";
  std::filesystem::copy_file(source, training);
  std::filesystem::copy_file(source, heldout);
  config::RunConfig config;
  config.model.path = SHERD_TEST_SOURCE_DIR "/tests/data/stories260k-hf";
  config.data.train = {{.path = training.string()}};
  config.data.eval = {{.path = heldout.string()}};
  config.data.cache = (folder.path() / "cache").string();
  const ModelShape shape = model_shape(config.model.path);
  sherd::World world = sherd::World::alone();
  bool replaced = false;
  const track::Say replace = [&](const std::string& /*line*/) {
    if (!replaced) {
      folder.write("train.json", "{}");
      folder.write("eval.json", R"({"data": []})");
      replaced = true;
    }
  };
  const inputs::RunData data =
      load_run_data(config, load_tokenizer(config.model.path), shape, world, replace);
  ASSERT_TRUE(replaced);
  const text::QuestionFile file = text::read_squad(source);
  const inputs::DataFile bytes = inputs::read_data_file(source);
  EXPECT_EQ(data.training.size(), file.questions.size());
  EXPECT_EQ(data.identity.sha256, bytes.sha256);
  ASSERT_EQ(data.heldout.size(), 1);
  const inputs::Dataset& evaluation = data.heldout.front().dataset;
  EXPECT_EQ(data.heldout.front().sha256, bytes.sha256);
  EXPECT_EQ(evaluation.samples.size(), file.questions.size());
  for (std::size_t i = 0; i < file.questions.size(); ++i) {
    EXPECT_EQ(evaluation.record(i).id, file.questions[i].id);
  }
}

// A record that cannot be read belongs to neither side.
TEST(RunData, ListsASampleThatWasSkippedOnce) {
  const sherd::test::TempFolder folder;
  std::string records = "no JSON\n";
  for (int i = 0; i < 40; ++i) {
    records +=
        R"({"prompt": "Who is number )" + std::to_string(i) + R"(?", "completion": "Lily"})" + "\n";
  }
  const std::string path = folder.write("a.jsonl", records);
  config::RunConfig config;
  config.model.path = SHERD_TEST_SOURCE_DIR "/tests/data/stories260k-hf";
  config.data.train = {{.path = path}};
  config.data.eval = {{.path = path, .held_out = true}};
  config.data.held_out = 0.3;
  config.data.on_bad_sample = config::OnBadSample::Skip;
  config.data.cache = (folder.path() / "cache").string();
  sherd::World world = sherd::World::alone();
  const auto run_data = [&] {
    std::string said;
    const inputs::RunData data =
        load_run_data(config, load_tokenizer(config.model.path), model_shape(config.model.path),
                      world, [&](const std::string& line) { said += line + "\n"; });
    return std::pair(data, said);
  };
  const auto [data, said] = run_data();
  ASSERT_EQ(data.skipped.size(), 1U);
  EXPECT_EQ(data.parts[0].report.skipped + data.heldout[0].dataset.report.skipped, 1);
  EXPECT_EQ(said.find("1 bad sample skipped"), said.rfind("1 bad sample skipped")) << said;
  EXPECT_EQ(data.parts[0].report.samples + data.heldout[0].dataset.report.samples, 40);
  // Of a file that is evaluated as a whole, the same place is another sample's of its figures.
  config.data.held_out = 0;
  config.data.eval[0].held_out = false;
  const auto [twice, told] = run_data();
  EXPECT_EQ(twice.skipped.size(), 1U);
  EXPECT_EQ(twice.heldout[0].dataset.report.skipped, 1);
}

// A file that takes a while, and one that is in the cache.
TEST(RunData, TellsHowMuchOfAFileIsTokenized) {
  const sherd::test::TempFolder folder;
  std::string records;
  for (int i = 0; i < 20'000; ++i) {
    records += R"({"prompt": "Who went to the park?", "completion": "Lily"})"
               "\n";
  }
  config::RunConfig config;
  config.model.path = SHERD_TEST_SOURCE_DIR "/tests/data/stories260k-hf";
  config.data.train = {{.path = folder.write("a.jsonl", records).string()}};
  config.data.cache = (folder.path() / "cache").string();
  const ModelShape shape = model_shape(config.model.path);
  const text::Tokenizer tokenizer = load_tokenizer(config.model.path);
  sherd::World world = sherd::World::alone();
  const auto silent = [](const std::string& /*line*/) {};
  const auto shown_lines = [&] {
    std::mutex mutex;
    std::string shown;
    track::Progress progress(
        {.say = silent,
         .show =
             [&](const std::string& text) {
               const std::lock_guard lock(mutex);
               shown += text + "\n";
             }},
        {.before_live = std::chrono::milliseconds(0), .refresh = std::chrono::milliseconds(1)});
    static_cast<void>(load_run_data(config, tokenizer, shape, world, silent, &progress));
    const std::lock_guard lock(mutex);
    return shown;
  };
  const std::string file = config.data.train[0].path;
  EXPECT_THAT(shown_lines(),
              testing::ContainsRegex("tokenizing " + file + ", [0-9,]+ of 1,[0-9]+ KB … 0 s"));
  EXPECT_THAT(shown_lines(), Not(HasSubstr("tokenizing")));
}

}  // namespace
}  // namespace llm::setup
