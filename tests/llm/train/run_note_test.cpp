// What a checkpoint remembers, and which changes make another run.

#include "llm/train/run_note.h"

#include <gtest/gtest.h>

#include "tests/support/expect_error.h"

namespace llm::train {
namespace {

using sherd::ExitCode;
using sherd::test::expect_error;

RunNote note_of(const config::RunConfig& config) {
  return {7, 40, 32, "/models/small \"one\"", config::to_toml(config)};
}

TEST(RunNote, SurvivesItsText) {
  const RunNote note = note_of({});
  const RunNote read = note_from_text(to_text(note), "folder");
  EXPECT_EQ(read.step, 7);
  EXPECT_EQ(read.total_steps, 40);
  EXPECT_EQ(read.samples, 32);
  EXPECT_EQ(read.model, note.model);
  EXPECT_EQ(read.config, note.config);
}

TEST(RunNote, OfAnotherProgramIsRefused) {
  for (const char* text : {"", "epoch 3", "{}", "[1]", R"({"step": "seven"})"}) {
    expect_error([&] { static_cast<void>(note_from_text(text, "runs/a")); }, ExitCode::BadData,
                 {"'runs/a'", "was not written by `sherd train`"});
  }
}

TEST(SameRun, MayLogSaveAndEvaluateInAnotherWay) {
  config::RunConfig config;
  const RunNote note = note_of(config);
  config.model.path = "elsewhere";
  config.data.train = "moved.json";
  config.train.output = "other";
  config.train.micro_batch = 4;  // the cut changes no loss
  config.log.every_steps = 5;
  config.checkpoint.every_steps = 3;
  config.checkpoint.resume = "runs/a";
  config.eval.batch = 2;
  EXPECT_NO_THROW(check_same_run(note, config, 32, 40, "runs/a"));
}

TEST(SameRun, IsRefusedWithEverySettingThatDiffers) {
  config::RunConfig config;
  const RunNote note = note_of(config);
  config.train.seed = 3;
  config.train.global_batch = 16;
  config.optim.lr = 0.5;
  config.optim.betas = {0.5, 0.6};
  config.precision.param_dtype = config::ParamDtype::BFloat16;
  expect_error([&] { check_same_run(note, config, 31, 50, "runs/a"); }, ExitCode::Usage,
               {"'runs/a' belongs to a run with other settings", "train.seed was 0 and is now 3",
                "train.global_batch was 8 and is now 16", "optim.lr was 2e-05 and is now 0.5",
                "optim.betas was ", "precision.param_dtype was ",
                "number of training samples was 32 and is now 31",
                "length of the run in steps was 40 and is now 50", "--resume never"});
}

}  // namespace
}  // namespace llm::train
