// What can be known before a run is told before it takes time, memory or the only chance to save.

#include "tests/in_process/run_program.h"

namespace sherd::test {
namespace {

using testing::HasSubstr;
using testing::Not;

// A model folder without weights: random ones may have any size.
fs::path giant(const TempFolder& folder, int layers) {
  const fs::path model = copy_of_model(folder.path() / "giant");
  fs::remove(model / "model.safetensors");
  auto config = nlohmann::json::parse(read_file(model / "config.json"));
  config["hidden_size"] = 16384;
  config["intermediate_size"] = 65536;
  config["num_hidden_layers"] = layers;
  config["num_attention_heads"] = 128;
  config["num_key_value_heads"] = 128;
  config.erase("head_dim");
  std::ofstream(model / "config.json") << config.dump();
  return model;
}

Arguments train_giant(const TempFolder& folder, int layers) {
  Arguments run = train(folder.path() / "run", "3") + Arguments{"--model.init", "random"};
  std::replace(run.begin(), run.end(), kModel, giant(folder, layers).string());
  return run;
}

TEST(EarlyFault, ACheckpointThatTheDiskCannotHold) {
  const TempFolder folder;
  const Ended ended = expect_code(73, train_giant(folder, 400));
  EXPECT_THAT(ended.err, HasSubstr("a checkpoint of this model takes "));
  EXPECT_THAT(ended.err, HasSubstr(" free"));
  EXPECT_FALSE(fs::exists(folder.path() / "run"));
}

TEST(EarlyFault, AModelThatMemoryCannotHold) {
  const TempFolder folder;
  const Ended ended =
      expect_code(81, train_giant(folder, 400) +
                          Arguments{"--checkpoint.at_end", "false", "--checkpoint.every", "never"});
  EXPECT_THAT(ended.out, HasSubstr("memory: at least "));
  EXPECT_THAT(ended.err, HasSubstr("the model does not fit: each rank holds at least "));
  EXPECT_THAT(ended.err, HasSubstr("are available"));
}

TEST(EarlyFault, ADryRunOfAModelThatMemoryCannotHold) {
  const TempFolder folder;
  const Ended ended = expect_code(1, train_giant(folder, 4) + Arguments{"--dry-run"});
  EXPECT_THAT(ended.out, HasSubstr("does not fit: "));
  EXPECT_FALSE(fs::exists(folder.path() / "run"));
}

TEST(EarlyFault, ADryRunOfAFolderThatCannotBeMade) {
  const TempFolder folder;
  Arguments run = train("/proc/sherd/run") + Arguments{"--dry-run"};
  EXPECT_THAT(expect_code(73, run).err,
              HasSubstr("cannot write to the output folder '/proc/sherd/run': "));
  expect_code(0, train(folder.path() / "deep/er/run") + Arguments{"--dry-run"});
  EXPECT_TRUE(fs::is_empty(folder.path()));
}

TEST(EarlyFault, AWarmUpLongerThanTheRun) {
  const TempFolder folder;
  Arguments run = train(folder.path() / "run", "0") +
                  Arguments{"--train.epochs", "1", "--optim.warmup_steps", "500"};
  const Ended ended = expect_code(64, run);
  EXPECT_THAT(ended.err, HasSubstr("schedule.warmup = \"500 steps\" is longer than the run"));
  EXPECT_THAT(ended.err, HasSubstr("3 steps"));
  EXPECT_FALSE(fs::exists(folder.path() / "run"));
}

TEST(EarlyFault, AMissingEvaluationFileBeforeTheTrainingFileIsTokenized) {
  const TempFolder folder;
  const Ended ended = expect_code(
      66, train(folder.path() / "run", "3") + Arguments{"--data.eval", "/no/such/file.json"});
  EXPECT_THAT(ended.err, HasSubstr("/no/such/file.json"));
  EXPECT_THAT(ended.out, Not(HasSubstr("questions,")));
}

TEST(Length, BeyondTheModelsContextIsSaid) {
  const TempFolder folder;
  Arguments run = train(folder.path() / "run", "1");
  std::replace(run.begin(), run.end(), std::string("128"), std::string("4096"));
  const Ended ended = expect_code(0, run);
  EXPECT_THAT(ended.out, HasSubstr("data.max_length = 4096 is more than the model's context: 512"));
}

TEST(Length, OfABenchBeyondTheModelsContextIsRefused) {
  const Ended ended = expect_code(64, {"bench", "--model", kModel, "--seq", "4096", "--json"});
  EXPECT_THAT(ended.err, HasSubstr("--seq 4096 is more than the 512 tokens"));
}

TEST(LostLoss, IsSaid) {
  const TempFolder folder;
  const Ended ended =
      expect_code(0, train(folder.path() / "run", "5") +
                         Arguments{"--optim.lr", "1e8", "--optim.schedule", "constant"});
  EXPECT_THAT(ended.out, HasSubstr("the gradient norm is 0: the model no longer learns"));
  EXPECT_THAT(ended.out, HasSubstr("warning: optim.lr = 100000000 is unusually large for AdamW"));
  const std::string last = ended.out.substr(ended.out.rfind('\n', ended.out.size() - 2) + 1);
  EXPECT_THAT(last, testing::StartsWith("warning: this run has diverged: the "));
  EXPECT_THAT(last, HasSubstr("Lower optim.lr, or raise schedule.warmup."));
}

// The run's own lengths, so that both evaluations see the same prompts.
TEST(EvaluationOfARun, IsTheRunsOwn) {
  const TempFolder folder;
  const fs::path output = folder.path() / "run";
  const Arguments held = {
      "--data.eval",     kQuestions, "--data.eval_limit", "8", "--data.max_answer_tokens", "5",
      "--eval.generate", "true"};
  const Ended trained = expect_code(0, train(output, "2") + held);
  const size_t at = trained.out.find("evaluation: loss");
  ASSERT_NE(at, std::string::npos) << trained.out;
  const std::string line = trained.out.substr(at, trained.out.find(", F1", at) - at);
  for (const fs::path& path : {output, output / "checkpoints/step-00000002"}) {
    const Ended ended =
        expect_code(0, {"eval", "--model", path.string(), "--data", kQuestions, "--limit", "8"});
    EXPECT_THAT(ended.out, HasSubstr(line));
  }
}

}  // namespace
}  // namespace sherd::test
