// Dtypes that the program chooses, and fp16 with a scaled loss.

#include "tests/in_process/run_program.h"

namespace sherd::test {
namespace {

using testing::AnyOf;
using testing::HasSubstr;

TEST(Precision, OfAutoIsWrittenIntoTheConfiguration) {
  const TempFolder folder;
  const fs::path output = folder.path() / "run";
  const Arguments run = train(output, "4") + Arguments{"--precision.param_dtype", "auto"};
  expect_code(0, run);
  const std::string config = read_file(output / "config.toml");
  EXPECT_THAT(config, AnyOf(HasSubstr("param_dtype = \"float32\""),
                            HasSubstr("param_dtype = \"bfloat16\"")));
  EXPECT_THAT(expect_code(0, run).out, HasSubstr("no step is left to do"));
}

// A run goes on in the dtype it began with, whatever this machine would choose.
TEST(Precision, OfAutoIsThatOfTheCheckpoint) {
  for (const char* dtype : {"float32", "bfloat16"}) {
    const TempFolder folder;
    const fs::path output = folder.path() / "run";
    expect_code(0, train(output, "1") + Arguments{"--precision.param_dtype", dtype});
    expect_code(0, train(output, "1") + Arguments{"--precision.param_dtype", "auto"});
  }
}

TEST(Precision, Float16LearnsWithAScaledLoss) {
  const TempFolder folder;
  const auto losses = [&](const std::string& dtype) {
    const fs::path output = folder.path() / dtype;
    expect_code(0, on_ranks(2, train(output, "6")) + Arguments{"--precision.param_dtype", dtype,
                                                               "--optim.lr", "1e-3",
                                                               "--train.micro_batch", "6"});
    return column(output, "loss");
  };
  const auto half = losses("float16");
  const auto full = losses("float32");
  EXPECT_LT(half.back(), half.front());
  for (size_t i = 0; i < full.size(); ++i) {
    EXPECT_NEAR(half[i], full[i], 0.02 * full[i]) << "step " << i + 1;
  }
}

// Also where one goes on from the other's checkpoint.
TEST(Precision, SplitMastersTrainAsWholeOnesBitByBit) {
  const TempFolder folder;
  const auto run = [&](const std::string& name, const char* master, const Arguments& more = {}) {
    const fs::path output = folder.path() / name;
    expect_code(0, on_ranks(2, train(output, "6")) +
                       Arguments{"--precision.param_dtype", "bfloat16", "--precision.master",
                                 master, "--checkpoint.every", "3 steps"} +
                       more);
    return output;
  };
  const fs::path whole = run("whole", "float32");
  const fs::path split = run("split", "split");
  const fs::path both =
      run("both", "float32", {"--resume", (split / "checkpoints/step-00000003").string()});
  const auto all = column(whole, "loss");
  EXPECT_EQ(column(split, "loss"), all);
  EXPECT_EQ(column(both, "loss", 4), std::vector<double>(all.begin() + 3, all.end()));
  EXPECT_TRUE(exported_weights(split) == exported_weights(whole));
  EXPECT_TRUE(exported_weights(both) == exported_weights(whole));
}

// Eight bytes a parameter: the losses of fp32 masters but for rounding, also from a checkpoint.
TEST(Precision, AllInBf16TrainsRepeatsAndGoesOn) {
  const TempFolder folder;
  const auto run = [&](const std::string& name, const Arguments& more) {
    const fs::path output = folder.path() / name;
    expect_code(0, train(output, "6") +
                       Arguments{"--precision.param_dtype", "bfloat16", "--optim.lr", "1e-3",
                                 "--checkpoint.every", "3 steps"} +
                       more);
    return output;
  };
  const Arguments narrow = {"--precision.master",       "bfloat16",
                            "--precision.moments",      "bfloat16",
                            "--precision.reduce_dtype", "bfloat16"};
  const auto full = column(run("full", {}), "loss");
  const fs::path whole = run("narrow", narrow);
  const fs::path rest =
      run("rest", narrow + Arguments{"--resume", (whole / "checkpoints/step-00000003").string()});
  const auto all = column(whole, "loss");
  for (size_t i = 0; i < full.size(); ++i) {
    EXPECT_NEAR(all[i], full[i], 0.03 * full[i]) << "step " << i + 1;
  }
  EXPECT_LT(all.back(), all.front());
  EXPECT_EQ(column(rest, "loss", 4), std::vector<double>(all.begin() + 3, all.end()));
  EXPECT_TRUE(exported_weights(rest) == exported_weights(whole));
}

// The scale of the loss is kept in the checkpoint: the second half is that of the whole run.
TEST(Precision, Float16GoesOnBitByBit) {
  const TempFolder folder;
  const fs::path whole = folder.path() / "whole";
  const fs::path parts = folder.path() / "parts";
  const Arguments half = {"--precision.param_dtype", "float16", "--optim.lr", "1e-3"};
  expect_code(0, train(whole, "6") + half + Arguments{"--checkpoint.every", "3 steps"});
  expect_code(0, train(parts, "6") + half +
                     Arguments{"--resume", (whole / "checkpoints/step-00000003").string()});
  const auto all = column(whole, "loss");
  EXPECT_EQ(column(parts, "loss", 4), std::vector<double>(all.begin() + 3, all.end()));
  EXPECT_TRUE(exported_weights(whole) == exported_weights(parts));
}

}  // namespace
}  // namespace sherd::test
