// A loss that is not finite ends every process of a run before it reaches the weights.

#include "tests/e2e/training.h"

namespace sherd::test {
namespace {

using testing::HasSubstr;

TEST(NonFinite, LossEndsAllRanksAndLeavesTheLastCheckpoint) {
  const TempFolder folder;
  const fs::path output = folder.path() / "run";
  const Arguments exploding = {"--train.micro_batch",
                               "3",
                               "--optim.lr",
                               "1e30",
                               "--optim.schedule",
                               "constant",
                               "--optim.clip_grad_norm",
                               "0",
                               "--checkpoint.every_steps",
                               "1"};
  const Ended ended = expect_code(79, on_ranks(2, train(output)) + exploding);
  EXPECT_THAT(ended.err, HasSubstr("of step 2 is "));
  EXPECT_THAT(ended.err, HasSubstr("Nothing was updated"));
  // Step 1 was sound: its checkpoint can be exported, and step 2 left no trace.
  EXPECT_EQ(column(output, "loss").size(), 1U);
  EXPECT_TRUE(fs::exists(output / "checkpoints/step-00000001/manifest.json"));
  EXPECT_FALSE(fs::exists(output / "checkpoints/step-00000002"));
  EXPECT_GT(exported_weights(output).size(), 500'000U);
  EXPECT_THAT(ended.err, HasSubstr("the same command resumes from it with a lower optim.lr"));
}

}  // namespace
}  // namespace sherd::test
