// A run of version 0.1.0, whose checkpoint lies in tests/data, goes on: by its own file, whose keys
// have other names now, and by the new ones.

#include "tests/in_process/run_program.h"

namespace sherd::test {
namespace {

using testing::HasSubstr;
using testing::Not;

const fs::path kOld = SHERD_TEST_SOURCE_DIR "/tests/data/run-0.1.0";
const Arguments kAsBefore = {"--optim.weight_decay_on_norms_and_biases", "true"};

// Its output folder with the checkpoint of step 3 of 6, and its model with a tokenizer.
class FirstVersion : public testing::Test {
 protected:
  FirstVersion() {
    fs::create_directories(output());
    fs::copy(kOld / "checkpoints", output() / "checkpoints", fs::copy_options::recursive);
    fs::copy(kOld / "model", folder_.path() / "model");
    fs::copy(fs::path(kModel) / "tokenizer.json", folder_.path() / "model/tokenizer.json");
  }
  [[nodiscard]] fs::path output() const { return folder_.path() / "run"; }
  [[nodiscard]] Arguments paths() const {
    return {"--model.path",   (folder_.path() / "model").string(),
            "--data.train",   kQuestions,
            "--train.output", output().string()};
  }
  // The losses of the steps 4 to 6 are those that version 0.1.0 went on to.
  void expect_same_losses() const {
    const auto old = column(kOld, "loss");
    const auto losses = column(output(), "loss", 4);
    ASSERT_EQ(losses.size(), 3U);
    for (size_t i = 0; i < losses.size(); ++i) {
      EXPECT_NEAR(losses[i], old[i + 3], 1e-5 * old[i + 3]) << "step " << i + 4;
    }
  }

 private:
  TempFolder folder_;
};

TEST_F(FirstVersion, GoesOnByItsOwnFile) {
  const Ended ended =
      expect_code(0, Arguments{"train", (kOld / "run.toml").string()} + paths() + kAsBefore);
  EXPECT_THAT(ended.out, HasSubstr("resumed from"));
  EXPECT_THAT(ended.out, HasSubstr("run.toml:20: optim.warmup_steps is now schedule.warmup = "
                                   "\"2 steps\""));
  EXPECT_THAT(ended.out, HasSubstr("train.threads is now device.threads"));
  expect_same_losses();
}

TEST_F(FirstVersion, GoesOnByTheNewNames) {
  const Arguments now = {"--model.init",
                         "random",
                         "--data.train[0].limit",
                         "24",
                         "--data.train[0].limit_order",
                         "file",
                         "--data.max_length",
                         "128",
                         "--data.cache",
                         "none",
                         "--train.max_steps",
                         "6",
                         "--optim.lr",
                         "1e-3",
                         "--optim.weight_decay",
                         "0.1",
                         "--schedule.warmup",
                         "2 steps",
                         "--schedule.kind",
                         "cosine",
                         "--device.threads",
                         "1"};
  const Ended ended = expect_code(0, Arguments{"train"} + paths() + now + kAsBefore);
  EXPECT_THAT(ended.out, Not(HasSubstr(" is now ")));
  expect_same_losses();
}

TEST_F(FirstVersion, IsNotResumedWithAnotherMeaningInSilence) {
  const Ended ended = expect_code(0, Arguments{"train", (kOld / "run.toml").string()} + paths());
  EXPECT_THAT(ended.out, HasSubstr("changed since step 3: "
                                   "optim.weight_decay_on_norms_and_biases true -> false\n"));
  const Ended other = expect_code(64, Arguments{"train"} + paths() + kAsBefore +
                                          Arguments{"--model.init", "random", "--data.train_limit",
                                                    "25", "--train.max_steps", "6"});
  EXPECT_THAT(other.err, HasSubstr("data.train[0].limit was 24 and is now 25"));
}

}  // namespace
}  // namespace sherd::test
