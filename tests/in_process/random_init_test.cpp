// A run from random weights: a folder that has a configuration and a tokenizer only.

#include <algorithm>
#include <cmath>

#include "tests/in_process/run_program.h"

namespace sherd::test {
namespace {

const std::string kShape = SHERD_TEST_SOURCE_DIR "/recipes/models/small-bloom";

Arguments train_shape(const fs::path& output, const Arguments& flags) {
  Arguments arguments = train(output, "3");
  std::replace(arguments.begin(), arguments.end(), kModel, kShape);
  return arguments + flags;
}

TEST(RandomInit, IsTheSameOnAnyWorldSizeAndAnotherForAnotherSeed) {
  const TempFolder folder;
  const Arguments random = {"--model.init", "random"};
  const auto losses = [&](const std::string& name, int ranks, const Arguments& flags) {
    expect_code(0, on_ranks(ranks, train_shape(folder.path() / name, flags)));
    return column(folder.path() / name, "loss");
  };
  const auto one = losses("one", 1, random), two = losses("two", 2, random);
  const auto other = losses("other", 1, random + Arguments{"--train.seed", "1"});
  for (size_t i = 0; i < one.size(); ++i) {
    EXPECT_NEAR(two[i], one[i], 1e-5 * one[i]);
  }
  EXPECT_NEAR(one.front(), 6.24, 0.2);  // log 512: it knows nothing
  EXPECT_GT(std::abs(other.front() - one.front()), 1e-4);

  // The folder says float32; the names are those that transformers saves.
  const fs::path out = folder.path() / "hf";
  expect_code(0, {"export", "--checkpoint", folder.path() / "two", "--out", out});
  const std::string weights = read_file(out / "model.safetensors");
  EXPECT_THAT(weights, testing::HasSubstr("\"transformer.h.3.mlp.dense_4h_to_h.bias\""));
  EXPECT_THAT(weights, testing::HasSubstr("\"F32\""));
  expect_code(0, {"eval", "--model", out, "--data", kQuestions, "--limit", "4", "--max-length",
                  "128", "--loss-only"});
}

TEST(RandomInit, MustBeAskedFor) {
  const TempFolder folder;
  const Ended ended = expect_code(66, train_shape(folder.path() / "run", {}));
  EXPECT_THAT(ended.err, testing::HasSubstr("no weights: looked for model.safetensors"));
  EXPECT_THAT(ended.err, testing::HasSubstr("give model.init = \"random\""));
  EXPECT_FALSE(fs::exists(folder.path() / "run"));
}

}  // namespace
}  // namespace sherd::test
