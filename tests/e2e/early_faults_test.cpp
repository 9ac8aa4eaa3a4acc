// What can be known before a run is told before it takes time, memory or the only chance to save.

#include <csignal>
#include <thread>

#include "tests/e2e/training.h"

namespace sherd::test {
namespace {

using testing::HasSubstr;
using testing::Not;

const std::string kManyQuestions = SHERD_TEST_SOURCE_DIR "/recipes/data/squad-1000-train.json";

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

TEST(EarlyFault, AFaultIsToldOnce) {
  const TempFolder folder;
  const Ended ended = expect_code(
      66, on_ranks(2, train(folder.path() / "run", "3") +
                          Arguments{"--train.micro_batch", "6", "--data.eval", "/no/such.json"}));
  const size_t first = ended.err.find("/no/such.json");
  ASSERT_NE(first, std::string::npos);
  EXPECT_THAT(ended.err, Not(HasSubstr("[rank 1] sherd:")));
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

TEST(StopAtStart, EndsAtOnceAndLeavesNothing) {
  const TempFolder folder;
  Arguments run = train(folder.path() / "run", "1000") + Arguments{"--data.cache", "none"};
  std::replace(run.begin(), run.end(), kQuestions, kManyQuestions);
  for (const int signal : {SIGINT, SIGTERM}) {
    Program program(on_ranks(1, run));
    program.wait_for("model: ");  // before data and weights
    program.signal(signal);
    const Ended ended = program.finish();
    EXPECT_EQ(ended.code, 75) << ended.out << ended.err;
    EXPECT_LT(ended.seconds, 3);
    EXPECT_THAT(ended.out, HasSubstr("the same command starts over"));
    EXPECT_FALSE(fs::exists(folder.path() / "run"));
  }
}

TEST(StopAtStart, OfARunThatResumesSaysFromWhere) {
  const TempFolder folder;
  fs::create_directories(folder.path() / "run/checkpoints/step-00000010");
  folder.write("run/checkpoints/step-00000010/manifest.json", "{}");  // by names alone
  Arguments run = train(folder.path() / "run", "1000") + Arguments{"--data.cache", "none"};
  std::replace(run.begin(), run.end(), kQuestions, kManyQuestions);
  Program program(run);
  program.wait_for("model: ");
  program.signal(SIGINT);
  const Ended ended = program.finish();
  EXPECT_EQ(ended.code, 75) << ended.out << ended.err;
  EXPECT_THAT(ended.out, HasSubstr("before the first step: no step was lost; the same command "
                                   "resumes from " +
                                   (folder.path() / "run/checkpoints/step-00000010").string()));
}

TEST(StopOfOtherVerbs, IsWhatTheSignalDoes) {
  const Arguments eval = {"eval", "--model", kModel, "--data", kManyQuestions};
  const Arguments bench = {"bench",   "--model", kModel,          "--seq", "512",
                           "--steps", "100000",  "--max-minutes", "none"};
  for (const Arguments& verb : {eval, on_ranks(2, eval), bench}) {
    Program program(verb);
    std::this_thread::sleep_for(std::chrono::seconds(3));
    program.signal(SIGTERM);
    const Ended ended = program.finish();
    EXPECT_EQ(ended.code, 128 + SIGTERM) << verb.front() << ended.out << ended.err;
    EXPECT_LT(ended.seconds, 3) << verb.front();
  }
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
