// No run is lost or overwritten: evaluations cost no step, one run an output folder, ranks that
// were started alike, data that stayed the same, later checkpoints that stay.

#include "tests/in_process/run_program.h"
#include "tests/support/evaluations.h"

namespace sherd::test {
namespace {

using testing::HasSubstr;
using testing::Not;

void replace(Arguments& arguments, const std::string& from, const std::string& to) {
  std::replace(arguments.begin(), arguments.end(), from, to);
}

fs::path checkpoint(const fs::path& output, int step) {
  return output / "checkpoints" / ("step-0000000" + std::to_string(step));
}

bool is_complete(const fs::path& folder) {
  return fs::exists(folder / "manifest.json");
}

// The evaluations that a log tells of.
std::vector<nlohmann::json> evaluations(const fs::path& output) {
  std::vector<nlohmann::json> found;
  std::ifstream file(output / "log.jsonl");
  for (std::string line; std::getline(file, line);) {
    auto record = nlohmann::json::parse(line);
    if (record.value("event", "") == "evaluation") {
      found.push_back(std::move(record));
    }
  }
  return found;
}

TEST(LastEvaluation, StopsAtASignalAndIsMadeUpFor) {
  const TempFolder folder;
  const fs::path output = folder.path() / "run";
  Arguments run = on_ranks(2, train(output, "2") + Arguments{"--train.micro_batch", "6"});
  replace(run, "128", "512");
  // In the middle of the answers.
  const Ended stopped = run_until({.text = "evaluating ", .asked_before = 2}, run + kGenerating);
  EXPECT_EQ(stopped.code, 75) << stopped.out << stopped.err;
  EXPECT_LT(stopped.seconds, 5);
  EXPECT_TRUE(is_complete(checkpoint(output, 2)));
  EXPECT_THAT(evaluations(output), testing::IsEmpty());

  const Arguments few = {"--data.eval", kQuestions, "--data.eval_limit", "2"};
  const Ended ended = expect_code(0, run + few);
  EXPECT_THAT(ended.out, HasSubstr("evaluation: loss"));
  ASSERT_THAT(evaluations(output), testing::SizeIs(1));
  EXPECT_EQ(evaluations(output)[0].at("step"), 2);
  // Once is enough.
  EXPECT_THAT(expect_code(0, run + few).out, Not(HasSubstr("evaluation: loss")));
  // Asked for in another way, it is another one.
  const Ended again = expect_code(0, run + few + Arguments{"--eval.generate", "true"});
  EXPECT_THAT(again.out, HasSubstr(", EM "));
  EXPECT_EQ(column(output, "loss").size(), 2U);
}

TEST(Evaluation, OfSeveralFilesIsOneOfEach) {
  const TempFolder folder;
  const fs::path output = folder.path() / "run";
  const fs::path copy = folder.write("copy.json", read_file(kQuestions) + "\n");
  const Arguments run = train(output, "2") + Arguments{"--data.eval",          kQuestions,
                                                       "--data.eval[0].limit", "5",
                                                       "--data.eval[1].path",  copy.string(),
                                                       "--data.eval[1].limit", "3"};
  const Ended ended = expect_code(0, on_ranks(2, run + Arguments{"--train.micro_batch", "6"}));
  EXPECT_THAT(ended.out, HasSubstr("evaluation of " + kQuestions + ": loss "));
  EXPECT_THAT(ended.out, HasSubstr("evaluation of " + copy.string() + ": loss "));
  const auto lines = evaluations(output);
  ASSERT_THAT(lines, testing::SizeIs(2));
  EXPECT_EQ(lines[0].at("data"), kQuestions);
  EXPECT_EQ(lines[0].at("samples"), 5);
  EXPECT_EQ(lines[1].at("data"), copy.string());
  EXPECT_EQ(lines[1].at("samples"), 3);
  EXPECT_NE(lines[0].at("data_sha256"), lines[1].at("data_sha256"));
  // A file that comes later is made up for alone.
  const fs::path third = folder.write("third.json", read_file(kQuestions) + "\n\n");
  expect_code(0,
              run + Arguments{"--data.eval[2].path", third.string(), "--data.eval[2].limit", "2"});
  ASSERT_THAT(evaluations(output), testing::SizeIs(3));
  EXPECT_EQ(evaluations(output)[2].at("data"), third.string());
  EXPECT_EQ(evaluations(output)[2].at("step"), 2);
}

TEST(UnlikeRanks, AreToldWhichSettingDiffers) {
  const TempFolder folder;
  const Arguments run = train(folder.path() / "run", "3") + Arguments{"--train.micro_batch", "3"};
  const auto [first, second] = run_unlike_ranks(run + Arguments{"--optim.lr", "1e-4"},
                                                run + Arguments{"--optim.lr", "2e-4"});
  EXPECT_EQ(first.code, 78) << first.err;
  EXPECT_EQ(second.code, 78) << second.err;
  EXPECT_THAT(first.err, HasSubstr("optim.lr is 1e-04 on rank 0 and 2e-04 on rank 1"));
  EXPECT_THAT(second.err, Not(HasSubstr("optim.lr")));  // told once
  EXPECT_FALSE(fs::exists(folder.path() / "run"));
}

TEST(UnlikeRanks, AreToldThatTheirDataDiffers) {
  const TempFolder folder;
  Arguments other = train(folder.path() / "run", "3") + Arguments{"--train.micro_batch", "3"};
  const Arguments run = other;
  const fs::path copy = folder.write("questions.json", read_file(kQuestions) + "\n");
  replace(other, kQuestions, copy.string());
  const auto [first, second] = run_unlike_ranks(run, other);
  EXPECT_EQ(first.code, 78) << first.err;
  EXPECT_EQ(second.code, 78) << second.err;
  EXPECT_THAT(first.err, HasSubstr("the content of data.train (SHA-256) is "));
  EXPECT_FALSE(fs::exists(folder.path() / "run"));
}

TEST(UnlikeRanks, AreToldThatTheirEvaluationDataDiffers) {
  const TempFolder folder;
  const Arguments run = train(folder.path() / "run", "3") +
                        Arguments{"--train.micro_batch", "3", "--data.eval", kQuestions};
  const fs::path copy = folder.write("questions.json", read_file(kQuestions) + "\n");
  const auto [first, second] =
      run_unlike_ranks(run + Arguments{"--data.eval[1].path", kQuestions},
                       run + Arguments{"--data.eval[1].path", copy.string()});
  EXPECT_EQ(first.code, 78) << first.err;
  EXPECT_EQ(second.code, 78) << second.err;
  EXPECT_THAT(first.err, HasSubstr("the content of data.eval (SHA-256) is "));
}

TEST(EditedData, IsNoticedOnResume) {
  const TempFolder folder;
  const fs::path output = folder.path() / "run";
  const fs::path questions = folder.write("questions.json", read_file(kQuestions));
  Arguments run = train(output, "4");
  replace(run, kQuestions, questions.string());
  expect_code(0, run);
  std::string text = read_file(questions);
  const size_t at = text.find("\"question\": \"");
  ASSERT_NE(at, std::string::npos);
  text.insert(at + 13, "So ");  // as many questions as before
  std::ofstream(questions) << text;
  const Ended ended = expect_code(64, run);
  EXPECT_THAT(ended.err, HasSubstr("questions.json' has different content: its SHA-256 was "));
  EXPECT_THAT(ended.err, HasSubstr("export"));
  EXPECT_THAT(ended.err, HasSubstr("train.output"));
}

class LaterCheckpoints : public testing::Test {
 protected:
  void SetUp() override {
    expect_code(0, train(output_, "6") +
                       Arguments{"--checkpoint.every_steps", "2", "--checkpoint.keep", "9"});
    log_ = read_file(output_ / "log.jsonl");
  }
  void expect_untouched() {
    EXPECT_TRUE(is_complete(checkpoint(output_, 6)));
    EXPECT_EQ(read_file(output_ / "log.jsonl"), log_);
  }

  TempFolder folder_;
  fs::path output_ = folder_.path() / "run";
  std::string log_;
};

TEST_F(LaterCheckpoints, AreNotLostByStartingAnew) {
  const Ended ended = expect_code(73, train(output_, "2") + Arguments{"--resume", "never"});
  for (const char* part : {"holds a checkpoint of step 6", "train.output", "--resume overwrite"}) {
    EXPECT_THAT(ended.err, HasSubstr(part));
  }
  expect_untouched();
}

TEST_F(LaterCheckpoints, AreNotLostByGoingBack) {
  const Ended ended =
      expect_code(73, train(output_, "6") + Arguments{"--resume", checkpoint(output_, 2).string()});
  EXPECT_THAT(ended.err,
              HasSubstr("holds a checkpoint of step 6, and a run that starts at step 2"));
  expect_untouched();
}

TEST_F(LaterCheckpoints, AreDeletedWhenAsked) {
  const Ended ended = expect_code(0, train(output_, "2") + Arguments{"--resume", "overwrite"});
  EXPECT_THAT(ended.out, Not(HasSubstr("resumed")));
  EXPECT_FALSE(fs::exists(checkpoint(output_, 6)));
  EXPECT_TRUE(is_complete(checkpoint(output_, 2)));
  EXPECT_EQ(column(output_, "loss").size(), 2U);
}

TEST_F(LaterCheckpoints, OfARunFromAPathAreGoneOnFrom) {
  const fs::path output = folder_.path() / "second";
  const Arguments run = train(output, "6") + Arguments{"--resume", checkpoint(output_, 2).string()};
  expect_code(0, run);
  EXPECT_THAT(expect_code(0, run).out, HasSubstr("resumed from " + checkpoint(output, 6).string()));
}

TEST_F(LaterCheckpoints, ThatAreDamagedGiveWayToAnOlderOne) {
  const fs::path shard = checkpoint(output_, 6) / "shard-00000-of-00001.safetensors";
  std::string bytes = read_file(shard);
  bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
  std::ofstream(shard, std::ios::binary) << bytes;
  const Ended ended = expect_code(0, on_ranks(2, train(output_, "6")));
  EXPECT_THAT(ended.out, HasSubstr("step-00000006' is damaged"));
  EXPECT_THAT(ended.out, HasSubstr("resumed from " + checkpoint(output_, 4).string()));
  EXPECT_TRUE(is_complete(checkpoint(output_, 6)));
  EXPECT_EQ(column(output_, "loss").size(), 6U);
}

TEST(FinishedRun, SaysWhatComesNext) {
  const TempFolder folder;
  const fs::path output = folder.path() / "run";
  const Ended ended = expect_code(0, train(output, "3"));
  EXPECT_THAT(ended.out, HasSubstr("done: 3 steps in 00:00:"));
  EXPECT_THAT(ended.out, HasSubstr("next: sherd eval " + output.string()));
  EXPECT_THAT(ended.out, HasSubstr("sherd export " + output.string()));
  EXPECT_THAT(ended.out, HasSubstr("| epoch 1.00"));
}

// What an earlier run has left out stands until another one has begun in its place.
TEST(RefusedStart, LeavesTheListOfBadSamples) {
  const TempFolder folder;
  const fs::path output = folder.path() / "run";
  const std::string good = R"({"prompt": "a", "completion": "b"})"
                           "\n";
  const fs::path data = folder.write("data.jsonl", good + good + "bad\n");
  const Arguments run = {"train",
                         SHERD_TEST_SOURCE_DIR "/tests/e2e/base.toml",
                         "--model.path",
                         kModel,
                         "--data.train",
                         data.string(),
                         "--data.on_bad_sample",
                         "skip",
                         "--train.output",
                         output.string(),
                         "--train.max_steps",
                         "2",
                         "--train.global_batch",
                         "2"};
  expect_code(0, run);
  const std::string listed = read_file(output / "bad_samples.jsonl");
  EXPECT_NE(listed, "");
  std::ofstream(data) << good << good << "worse\nworst\n";
  expect_code(64, run);  // other data
  EXPECT_EQ(read_file(output / "bad_samples.jsonl"), listed);
}

}  // namespace
}  // namespace sherd::test
