// What is said of a run.

#include "llm/train/run_text.h"

#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "llm/setup/load_model.h"

namespace llm::train {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(RunText, TellsModelStepsAndMemory) {
  config::RunConfig config;
  config.model.path = SHERD_TEST_SOURCE_DIR "/tests/data/stories260k-hf";
  config.precision.param_dtype = config::ParamDtype::Float32;
  const setup::ModelShape shape = setup::model_shape(config.model.path);
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
}  // namespace llm::train
