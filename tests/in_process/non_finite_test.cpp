// A loss or gradient that is not finite ends the run before it reaches the weights.

#include "tests/in_process/run_program.h"

namespace sherd::test {
namespace {

using testing::HasSubstr;

TEST(NonFinite, RunTrainsOnFromItsLastCheckpointWithOtherNumbers) {
  const TempFolder folder;
  const fs::path output = folder.path() / "run";
  const auto run = [&](int code, const std::string& steps, const Arguments& numbers) {
    const Arguments words = {"--train.micro_batch", "3", "--checkpoint.every", "2 steps"};
    return expect_code(code, on_ranks(2, train(output, steps)) + words + numbers).out;
  };
  const Arguments half = {"--precision.param_dtype", "bfloat16", "--optim.clip_grad_norm", "none"};
  run(0, "2", half + Arguments{"--optim.lr", "1e-3"});
  for (int i = 0; i < 2; ++i) {  // the same command meets the same end
    run(79, "6", half + Arguments{"--optim.lr", "1e30"});
  }
  EXPECT_THAT(
      run(0, "6", {"--optim.lr", "1e-4", "--optim.clip_grad_norm", "0.5"}),
      HasSubstr("changed since step 2: train.max_steps 2 -> 6, optim.lr 0.001 -> 1e-04, "
                "optim.clip_grad_norm \"none\" -> 0.5, precision.param_dtype \"bfloat16\" -> "
                "\"float32\"\n"));
  EXPECT_EQ(column(output, "loss").size(), 6U);
}

// Steps of two samples of which one, in one step, has a token whose embedding is not a number.
class Poisoned : public testing::Test {
 protected:
  Poisoned() : model_(folder_.path() / "model") {
    constexpr std::size_t kHeader = 8 + 1472, kToken = 198, kWidth = 64;  // of <0xC3>, in bf16
    fs::copy(SHERD_TEST_SOURCE_DIR "/tests/data/tiny-llama3-hf", model_);
    std::string weights = read_file(model_ / "model-00001-of-00002.safetensors");
    for (std::size_t i = 0; i < kWidth; ++i) {
      weights.replace(kHeader + (kToken * kWidth + i) * 2, 2, "\xc0\x7f");
    }
    folder_.write("model/model-00001-of-00002.safetensors", weights);
    std::string lines;
    for (int i = 0; i < 40; ++i) {
      lines += "{\"prompt\": \"" + std::string(i == 17 ? "\u00c9" : "") + "say " +
               std::to_string(i) + "\", \"completion\": \"" + std::to_string(i) + "\"}\n";
    }
    data_ = folder_.write("data.jsonl", lines);
  }
  [[nodiscard]] fs::path output(const std::string& name) const { return folder_.path() / name; }
  [[nodiscard]] Arguments run(const std::string& name, const std::string& epochs,
                              const std::string& max_skipped) const {
    return {"train",
            SHERD_TEST_SOURCE_DIR "/tests/e2e/base.toml",
            "--model.path",
            model_.string(),
            "--data.train",
            data_.string(),
            "--train.output",
            output(name).string(),
            "--train.epochs",
            epochs,
            "--train.global_batch",
            "2",
            "--optim.clip_grad_norm",
            "none",  // the norm of shards has other bits than that of the whole
            "--train.on_non_finite",
            "skip",
            "--train.max_skipped",
            max_skipped,
            "--checkpoint.every",
            "1 steps",
            "--checkpoint.keep",
            "99"};
  }
  [[nodiscard]] std::string state_after(const std::string& name, int step) const {
    std::string bytes;
    char folder[32];
    std::snprintf(folder, sizeof folder, "checkpoints/step-%08d", step);
    for (const std::string& file : listing(output(name) / folder)) {
      bytes += file.ends_with(".safetensors") ? read_file(output(name) / folder / file) : "";
    }
    EXPECT_GT(bytes.size(), 100'000U);
    return bytes;
  }

  TempFolder folder_;
  fs::path model_;
  fs::path data_;
};

TEST_F(Poisoned, StepIsSkippedByAllRanksWithoutATrace) {
  const Ended one = expect_code(0, run("one", "1", "1"));
  expect_code(0, on_ranks(2, run("two", "1", "1")));
  int skipped = 0;
  const auto log = read_log(output("one") / "log.jsonl");
  const auto other = read_log(output("two") / "log.jsonl");
  ASSERT_EQ(log.size(), 20U);
  ASSERT_EQ(other.size(), 20U);
  for (std::size_t i = 0; i < log.size(); ++i) {
    EXPECT_EQ(log[i].at("loss"), other[i].at("loss"));
    EXPECT_EQ(log[i].at("loss").is_null(), log[i].contains("skipped"));
    skipped += log[i].contains("skipped") ? static_cast<int>(i) + 1 : 0;
  }
  ASSERT_GT(skipped, 1);
  ASSERT_LE(skipped, 20);
  EXPECT_THAT(one.out, HasSubstr("step " + std::to_string(skipped) +
                                 ": the loss is not finite: the update was left out on every rank "
                                 "(1 of at most 1 skipped, train.max_skipped)"));
  EXPECT_THAT(one.out, HasSubstr(", 1 skipped"));
  EXPECT_EQ(nlohmann::json::parse(read_file(output("one") / "summary.json")).at("skipped_steps"),
            1);
  EXPECT_TRUE(state_after("one", skipped) == state_after("one", skipped - 1));
  EXPECT_FALSE(state_after("one", 20) == state_after("one", skipped));
  EXPECT_TRUE(exported_weights(output("one")) == exported_weights(output("two")));
}

TEST_F(Poisoned, StepsBeyondMaxSkippedEndTheRunAlsoAfterAResume) {
  expect_code(0, run("run", "1", "1"));
  const Ended ended = expect_code(79, on_ranks(2, run("run", "2", "1")));
  EXPECT_THAT(ended.err, HasSubstr("is not finite, and the run has skipped 1 step already "
                                   "(train.max_skipped = 1)"));
  expect_code(0, run("run", "2", "2"));
  EXPECT_EQ(nlohmann::json::parse(read_file(output("run") / "summary.json")).at("skipped_steps"),
            2);
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
