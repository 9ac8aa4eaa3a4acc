// A loss or gradient that is not finite ends the run before it reaches the weights.

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
}

TEST(NonFinite, WeightsOfTheModelFolderAreToldAtTheFirstStep) {
  const TempFolder folder;
  const fs::path model = copy_of_model(folder.path() / "model");
  std::string weights = read_file(model / "model.safetensors");
  const std::string infinity("\x00\x00\x80\x7f", 4);
  weights.replace(weights.size() - infinity.size(), infinity.size(), infinity);
  folder.write("model/model.safetensors", weights);
  const fs::path output = folder.path() / "run";
  Arguments arguments = train(output) + Arguments{"--train.micro_batch", "3"};
  std::replace(arguments.begin(), arguments.end(), kModel, model.string());
  const Ended ended = expect_code(79, on_ranks(2, arguments));
  EXPECT_THAT(ended.err, HasSubstr("of step 1 is "));
  EXPECT_FALSE(fs::exists(output / "checkpoints"));
}

}  // namespace
}  // namespace sherd::test
