// How many steps a run has, how long a sample may be, and what is said of a run.

#include "llm/inputs/run_data.h"

#include <cmath>
#include <limits>
#include <mutex>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "llm/setup/load_data.h"
#include "llm/setup/load_model.h"
#include "llm/track/progress.h"
#include "llm/train/run_text.h"
#include "tests/llm/text/read_squad.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_folder.h"

namespace llm::setup {
namespace {

using sherd::ExitCode;
using sherd::test::expect_error;
using testing::HasSubstr;
using testing::Not;

TEST(inputs::RunLength, FollowsFromEpochsOrSteps) {
  config::RunConfig config;
  config.train.global_batch = 12;
  config.train.epochs = 2;
  const inputs::RunLength epochs = inputs::run_length(config, 32);
  EXPECT_EQ(epochs.steps_per_epoch, 3);
  EXPECT_EQ(epochs.total_steps, 6);
  config.train.max_steps = 5;
  EXPECT_EQ(inputs::run_length(config, 32).total_steps, 5);
}

TEST(inputs::RunLength, IsNoShorterThanTheWarmUp) {
  config::RunConfig config;
  config.train.global_batch = 12;
  config.schedule.warmup = {3, 0};
  EXPECT_NO_THROW(static_cast<void>(inputs::run_length(config, 32)));
  config.schedule.warmup = {4, 0};
  expect_error(
      [&] { static_cast<void>(inputs::run_length(config, 32)); }, ExitCode::Usage,
      {"schedule.warmup = \"4 steps\" is longer than the run, which has 3 steps", "32 samples"});
}

TEST(inputs::RunLength, CountsRowsWhereSamplesArePacked) {
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
TEST(inputs::RunData, ComesFromOneReadOfEachFile) {
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

// A file that takes a while, and one that is in the cache.
TEST(inputs::RunData, TellsHowMuchOfAFileIsTokenized) {
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

TEST(RunText, TellsModelStepsAndMemory) {
  config::RunConfig config;
  config.model.path = SHERD_TEST_SOURCE_DIR "/tests/data/stories260k-hf";
  config.precision.param_dtype = config::ParamDtype::Float32;
  const ModelShape shape = model_shape(config.model.path);
  EXPECT_THAT(model_line(config, shape),
              HasSubstr("stories260k-hf: llama, 260.0k parameters, computed in float32, context "
                        "512 tokens, full_shard"));
  EXPECT_EQ(
      steps_line({32, 3, 6}, {12, 2, 3}),
      "steps: 6 of 12 samples (2 epochs of 3 steps); each rank computes 2 x 2 samples per step");
  EXPECT_THAT(steps_line({32, 3, 3}, {12, 2, 3}), HasSubstr("(1 epoch of 3 steps)"));
  EXPECT_EQ(memory_line(std::int64_t{3} << 30, std::int64_t{8} << 30),
            "memory: at least 3.0 GiB per rank between steps; 8.0 GiB available on this host");
  EXPECT_THAT(memory_line(1 << 20, 0), Not(HasSubstr("available")));
}

TEST(RunText, EndsWithTheCommandsThatComeNext) {
  config::RunConfig config;
  config.train.output = "runs/my first";
  config.data.eval = {{.path = "dev.json"}};
  EXPECT_EQ(done_line({3, 70, 2.5, 1.25}), "done: 3 steps in 00:01:10, loss 2.5000 -> 1.2500");
  EXPECT_EQ(done_line({3, 70}), "done: 3 steps in 00:01:10, no supervised token: nothing learned");
  EXPECT_EQ(next_lines(config, "runs/my first/checkpoints/step-00000003"),
            "next: sherd eval 'runs/my first'\n"
            "      sherd generate 'runs/my first'\n"
            "      sherd export 'runs/my first' --out FOLDER");
  EXPECT_THAT(next_lines(config, ""), HasSubstr("not kept"));
  config.data.eval.clear();
  EXPECT_THAT(next_lines(config, "x"), HasSubstr("sherd eval 'runs/my first' --data FILE\n"));
}

TEST(RunText, SaysThatARunHasDiverged) {
  StepsMade made{.steps = 3, .first_loss = 2.5, .last_loss = 2.6, .worst_loss = 3.1};
  EXPECT_EQ(diverged_line(made), "");
  made.worst_loss = 94355;
  EXPECT_EQ(diverged_line(made),
            "warning: this run has diverged: the loss rose from 2.5 to 9.436e+04. Lower optim.lr, "
            "or raise schedule.warmup.");
  made.worst_loss = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THAT(diverged_line(made), HasSubstr("diverged: the loss is no longer a number."));
  made.worst_loss = 2.6;
  made.learns_nothing = true;
  EXPECT_THAT(diverged_line(made), HasSubstr("diverged: the gradient became 0."));
  EXPECT_EQ(diverged_line({}), "");
  // A loss near 0 may rise to a few tenths by the noise of batches.
  EXPECT_EQ(diverged_line({.steps = 3, .first_loss = 0.01, .last_loss = 0.1, .worst_loss = 0.3}),
            "");
}

TEST(StepsMade, HaveTheLossesOfStepsThatLearned) {
  StepsMade made;
  for (const auto& [loss, supervised] :
       std::vector<std::pair<double, std::int64_t>>{{NAN, 0}, {2.0, 5}, {1.0, 5}, {NAN, 0}}) {
    StepOutcome step;
    step.loss = loss;
    step.supervised_tokens = supervised;
    made.add(step);
  }
  EXPECT_EQ(made.steps, 4);
  EXPECT_EQ(made.first_loss, 2.0);
  EXPECT_EQ(made.last_loss, 1.0);
}

}  // namespace
}  // namespace llm::setup
