// `sherd watch` beside a run that goes on, on a terminal too, and what a run shows of itself there.

#include <array>
#include <cstdlib>
#include <map>
#include <memory>
#include <set>

#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/ioctl.h>

#include "tests/e2e/evaluations.h"

namespace sherd::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

// A program whose standard output is a terminal of 100 columns.
class OnTerminal {
 public:
  explicit OnTerminal(const Arguments& arguments) {
    const winsize size{30, 100, 0, 0};
    terminal_ = ::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    EXPECT_EQ(::grantpt(terminal_), 0);
    EXPECT_EQ(::unlockpt(terminal_), 0);
    EXPECT_EQ(::ioctl(terminal_, TIOCSWINSZ, &size), 0);
    std::array<char, 64> name{};
    EXPECT_EQ(::ptsname_r(terminal_, name.data(), name.size()), 0);
    program_ = std::make_unique<Program>(arguments, Arguments{"TERM=xterm"},
                                         "exec \"$0\" \"$@\" > " + std::string(name.data()));
  }
  ~OnTerminal() { ::close(terminal_); }
  OnTerminal(const OnTerminal&) = delete;
  OnTerminal& operator=(const OnTerminal&) = delete;

  // All that it shows until it has shown `text`, or nothing for a long time.
  const std::string& wait_for(const std::string& text) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (shown_.find(text) == std::string::npos && std::chrono::steady_clock::now() < deadline) {
      read_some(100);
    }
    EXPECT_THAT(shown_, HasSubstr(text));
    return shown_;
  }
  Ended finish() {
    // Its end is the end of the terminal's other side.
    while (read_some(20'000)) {
    }
    Ended ended = program_->finish();
    ended.out = shown_;
    return ended;
  }
  void signal(int number) { program_->signal(number); }

 private:
  bool read_some(int milliseconds) {
    pollfd event{terminal_, POLLIN, 0};
    std::array<char, 4096> bytes{};
    if (::poll(&event, 1, milliseconds) <= 0) {
      return false;
    }
    const ssize_t size = ::read(terminal_, bytes.data(), bytes.size());
    shown_.append(bytes.data(), static_cast<std::size_t>(std::max<ssize_t>(0, size)));
    return size > 0;
  }

  int terminal_ = -1;
  std::string shown_;
  std::unique_ptr<Program> program_;
};

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
              HasSubstr("; stopped: the same command goes on\n"));
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

TEST(Watch, OnATerminalFollowsARunToItsEnd) {
  const TempFolder folder;
  const fs::path output = folder.path() / "run";
  Program run(train(output, "4000"));
  run.wait_for("step 3/");
  OnTerminal watched({"watch", output.string()});
  watched.wait_for("; running");
  run.signal(SIGTERM);
  EXPECT_EQ(run.finish().code, 75);
  EXPECT_THAT(watched.finish().out, HasSubstr("; stopped: the same command goes on"));
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
              HasSubstr("'/no/such' is not the folder of a run"));
  EXPECT_THAT(expect_code(64, {"watch"}).err, HasSubstr("run is required"));
}

// A run that says little has a live line on a terminal, which leaves nothing behind, and none in a
// file.
TEST(LiveLine, IsOnATerminalAlone) {
  const TempFolder folder;
  const Arguments quiet = {"--log.every_steps", "100000", "--checkpoint.every", "never"};
  OnTerminal run(train(folder.path() / "run", "100000") + quiet);
  const std::string& shown = run.wait_for("\r\x1b[Kstep ");
  EXPECT_THAT(shown, HasSubstr("/100000 | loss "));
  run.signal(SIGTERM);
  const Ended ended = run.finish();
  EXPECT_EQ(ended.code, 75);
  EXPECT_THAT(ended.out, HasSubstr("\r\x1b[Kcheckpoint "));  // in its place
  const Ended plain = expect_code(0, train(folder.path() / "plain", "3") + quiet);
  EXPECT_THAT(plain.out, Not(HasSubstr("\x1b")));
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
