// `sherd watch` beside a run that goes on, on a terminal too.

#include <algorithm>
#include <atomic>
#include <map>
#include <set>
#include <thread>

#include <fcntl.h>
#include <sys/file.h>

#include "tests/e2e/on_terminal.h"
#include "tests/e2e/training.h"
#include "tests/support/evaluations.h"

namespace sherd::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

TEST(Watch, ShowsARunWithoutDisturbingIt) {
  const TempFolder folder;
  const fs::path output = folder.path() / "run";
  Program run(train(output, "400"));
  run.wait_for("step 3/");
  const std::string seen = expect_code(0, {"watch", output.string()}).out;
  EXPECT_THAT(seen, HasSubstr("run: " + kModel + ", 1 rank on 1 host; running\n"));
  EXPECT_THAT(seen, HasSubstr("/400 | loss "));
  EXPECT_THAT(seen, HasSubstr("\ntraining loss\n"));
  run.signal(SIGTERM);
  EXPECT_EQ(run.finish().code, 75);
  EXPECT_THAT(expect_code(0, {"watch", output.string(), "--once"}).out,
              HasSubstr("; stopped: the same command resumes\n"));
}

// A log may come from anybody.
TEST(Watch, CommandsNoTerminal) {
  const TempFolder folder;
  const fs::path output = folder.path() / "run";
  expect_code(0, train(output, "3"));
  std::ofstream(output / "log.jsonl", std::ios::app)
      << R"({"event":"evaluation","step":3,"data":"a\u001b]0;pwn\u0007","loss":1})"
      << "\n";
  const std::string seen = expect_code(0, {"watch", output.string()}).out;
  EXPECT_THAT(seen, HasSubstr(R"(a\x1b]0;pwn\x07)"));
  EXPECT_THAT(seen, Not(HasSubstr("\x1b")));
}

TEST(Watch, OnATerminalShowsAFinishedRunOnce) {
  const TempFolder folder;
  const fs::path output = folder.path() / "run";
  expect_code(0, train(output, "3"));
  OnTerminal watched({"watch", output.string()});
  const Ended ended = watched.finish();
  EXPECT_EQ(ended.code, 0);
  EXPECT_THAT(ended.out, testing::StartsWith("\x1b[H\x1b[2J"));
  EXPECT_THAT(ended.out, AllOf(HasSubstr("; finished"), HasSubstr("100 %"),
                               HasSubstr("train_loss "), Not(HasSubstr("running"))));
}

// Name, bar and step line stay in sight.
TEST(Watch, FitsIntoTheRowsOfATerminal) {
  const TempFolder folder;
  const fs::path output = folder.path() / "run";
  expect_code(0, evaluated(output, "4", "1 steps"));
  for (const unsigned short rows : std::initializer_list<unsigned short>{24, 40}) {
    OnTerminal watched({"watch", output.string()}, OnTerminal::Output::Standard, {}, {80, rows});
    const Ended ended = watched.finish();
    EXPECT_EQ(ended.code, 0);
    EXPECT_LT(std::count(ended.out.begin(), ended.out.end(), '\n'), rows) << ended.out;
    EXPECT_THAT(ended.out, AllOf(HasSubstr("run: "), HasSubstr("100 %"), HasSubstr("training loss"),
                                 HasSubstr("evaluation loss"), HasSubstr("train_loss ")));
  }
}

// With a live line, and somebody who looks at it all the time.
TEST(Watch, AndATerminalChangeNoNumbers) {
  const TempFolder folder;
  const fs::path output = folder.path() / "run";
  const fs::path plain = folder.path() / "plain";
  const Arguments often = {"--checkpoint.every", "10 steps"};
  const std::string steps = "60";
  expect_code(0, on_ranks(2, evaluated(plain, steps, "20 steps") + often));
  OnTerminal run(on_ranks(2, evaluated(output, steps, "20 steps") + often));
  run.wait_for("step 3/");
  std::atomic<bool> has_ended = false;
  std::thread watcher([&] {
    while (!has_ended) {
      expect_code(0, {"watch", output.string()});
    }
  });
  OnTerminal watched({"watch", output.string()});
  EXPECT_EQ(run.finish().code, 0);
  has_ended = true;
  watcher.join();
  EXPECT_EQ(watched.finish().code, 0);
  expect_same(output, plain);
  const auto losses = [](const fs::path& of) {
    std::vector<double> found;
    for (const auto& one : events(of, "evaluation")) {
      found.push_back(one.at("loss"));
    }
    return found;
  };
  EXPECT_EQ(losses(output), losses(plain));
}

// A failure that comes again tells of itself, and of no command that goes on.
TEST(Watch, SaysWhyARunHasFailed) {
  const TempFolder folder;
  const fs::path output = folder.path() / "run";
  expect_code(79, train(output, "3") + Arguments{"--optim.lr", "1e30"});
  EXPECT_THAT(expect_code(0, {"watch", output.string()}).out,
              AllOf(HasSubstr("; failed: "), HasSubstr("loss"), Not(HasSubstr("; stopped"))));
}

TEST(Watch, OnATerminalFollowsARunToItsEnd) {
  const TempFolder folder;
  const fs::path output = folder.path() / "run";
  Program run(train(output, "4000"));
  run.wait_for("step 3/");
  OnTerminal watched({"watch", output.string()});
  watched.wait_for("; running");
  run.signal(SIGTERM);
  EXPECT_EQ(run.finish().code, 75);
  EXPECT_THAT(watched.finish().out, HasSubstr("; stopped: the same command resumes"));
}

// The process holds the folder, and has written nothing into it yet.
TEST(Watch, ShowsARunThatReadsItsData) {
  const TempFolder folder;
  const fs::path output = folder.path() / "run";
  fs::create_directories(output);
  const int lock = ::open((output / "lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  ASSERT_EQ(::flock(lock, LOCK_EX), 0);
  EXPECT_THAT(expect_code(0, {"watch", output.string()}).out,
              HasSubstr("run: running\nno step yet"));
  ::close(lock);
  expect_code(66, {"watch", output.string()});
}

// What the ranks of a run got, by its own settings, and what the model was told to learn of it.
TEST(Watch, ShowsTheSamplesOfAStep) {
  const TempFolder folder;
  const fs::path output = folder.path() / "run";
  expect_code(0, on_ranks(2, train(output, "3") + Arguments{"--train.micro_batch", "3"}));
  const Arguments verb = {"watch", output.string(), "--step"};
  const auto samples_of = [&](const std::string& step) {
    return nlohmann::json::parse(expect_code(0, verb + Arguments{step, "--json"}).out);
  };
  std::set<std::string> ids;
  std::map<std::pair<int, int>, int> samples;
  for (const std::string step : {"1", "2", "3"}) {
    for (const auto& one : samples_of(step)) {
      EXPECT_TRUE(ids.insert(one.at("id").get<std::string>()).second);  // an epoch is three steps
      EXPECT_GT(one.at("supervised_tokens"), 0);
      if (step == "1") {
        ++samples[{one.at("rank").get<int>(), one.at("micro_batch").get<int>()}];
      }
    }
  }
  EXPECT_EQ(ids.size(), 32U);
  EXPECT_THAT(samples, testing::ElementsAre(
                           testing::Pair(std::pair(0, 0), 3), testing::Pair(std::pair(0, 1), 3),
                           testing::Pair(std::pair(1, 0), 3), testing::Pair(std::pair(1, 1), 3)));
  // The step's tokens are those of its record.
  std::int64_t tokens = 0;
  for (const auto& one : samples_of("2")) {
    tokens += one.at("tokens").get<std::int64_t>();
  }
  EXPECT_EQ(static_cast<double>(tokens), column(output, "tokens")[1]);
  const std::string text = expect_code(0, verb + Arguments{"1"}).out;
  EXPECT_THAT(
      text, AllOf(HasSubstr("rank 1, micro-batch 0: "), HasSubstr("Question: "), HasSubstr("[[")));
  EXPECT_THAT(expect_code(64, verb + Arguments{"4"}).err, HasSubstr("the run has steps 1 to 3"));
  EXPECT_THAT(expect_code(64, verb + Arguments{"1", "--once"}).err,
              HasSubstr("--once excludes --step"));
  expect_code(64, {"watch", output.string(), "--json"});
}

TEST(Watch, RefusesAStepOfOtherData) {
  const TempFolder folder;
  const fs::path output = folder.path() / "run";
  const fs::path data = folder.write("data.jsonl", R"({"prompt": "a", "completion": "b"})"
                                                   "\n"
                                                   R"({"prompt": "c", "completion": "d"})"
                                                   "\n");
  expect_code(0, {"train", SHERD_TEST_SOURCE_DIR "/tests/e2e/base.toml", "--model.path", kModel,
                  "--data.train", data.string(), "--train.output", output.string(),
                  "--train.max_steps", "1", "--train.global_batch", "2"});
  std::ofstream(data, std::ios::app) << R"({"prompt": "e", "completion": "f"})"
                                        "\n";
  EXPECT_THAT(expect_code(65, {"watch", output.string(), "--step", "1"}).err,
              HasSubstr("the training data of 'run' has changed since"));
}

TEST(Watch, RefusesWhatIsNoRun) {
  EXPECT_THAT(expect_code(66, {"watch", "/no/such"}).err,
              HasSubstr("'/no/such' is not a run: it contains no config.toml"));
  EXPECT_THAT(expect_code(64, {"watch"}).err, HasSubstr("run is required"));
}

TEST(Trace, IsLeftByEachRankAndChangesNoNumbers) {
  const TempFolder folder;
  const fs::path output = folder.path() / "run";
  const fs::path plain = folder.path() / "plain";
  const Ended ended =
      expect_code(0, on_ranks(2, train(output, "4") + Arguments{"--log.trace_steps", "2-3"}));
  EXPECT_THAT(ended.out, HasSubstr("trace of steps 2-3: "));
  expect_code(0, on_ranks(2, train(plain, "4")));
  EXPECT_EQ(column(output, "loss"), column(plain, "loss"));
  for (const std::string rank : {"0", "1"}) {
    const fs::path trace = output / "traces" / ("steps-2-3.rank-" + rank + ".json");
    std::set<std::string> names;
    const auto read = nlohmann::json::parse(read_file(trace));
    for (const auto& event : read.at("traceEvents")) {
      names.insert(event.value("name", ""));
    }
    EXPECT_THAT(names, testing::IsSupersetOf({"step 2", "step 3"}));
    EXPECT_FALSE(names.contains("step 1") || names.contains("step 4"));
    const auto memory = nlohmann::json::parse(
        read_file(output / "traces" / ("steps-2-3.rank-" + rank + ".memory.json")));
    ASSERT_FALSE(memory.at("traceEvents").empty());
    double before = 0;
    for (const auto& event : memory.at("traceEvents")) {
      EXPECT_EQ(event.at("ph"), "C");
      EXPECT_GE(event.at("ts").get<double>(), before);
      before = event.at("ts").get<double>();
    }
  }
}

}  // namespace
}  // namespace sherd::test
