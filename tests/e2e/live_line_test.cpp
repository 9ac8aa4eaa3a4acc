// What a verb is at, on a terminal as soon as that has taken a second.

#include <algorithm>
#include <chrono>
#include <csignal>
#include <sstream>
#include <thread>

#include <sched.h>

#include "tests/e2e/on_terminal.h"
#include "tests/support/fetching.h"

namespace sherd::test {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;
using Output = OnTerminal::Output;

const std::string kLine = "\r\x1b[K";  // where a live line begins

// Ends with 0, having shown each of `lines` in place.
Ended expect_lines(const Arguments& verb, Output output, const std::vector<std::string>& lines,
                   const Arguments& variables = {}) {
  OnTerminal program(verb, output, variables);
  Ended ended = program.finish();
  EXPECT_EQ(ended.code, 0) << ended.out << ended.err;
  const std::string& shown = output == Output::Standard ? ended.out : ended.err;
  for (const std::string& line : lines) {
    EXPECT_THAT(shown, HasSubstr(kLine + line));
  }
  EXPECT_THAT(shown.substr(shown.rfind(kLine)), Not(HasSubstr(" … ")));  // nothing stays
  return ended;
}

// A run that says little has one, which leaves nothing behind, and none in a file.
TEST(LiveLine, OfARunIsOnATerminalAlone) {
  const TempFolder folder;
  const Arguments quiet = {"--log.every_steps", "100000", "--checkpoint.every", "never"};
  OnTerminal run(train(folder.path() / "run", "100000") + quiet);
  const std::string& shown = run.wait_for(kLine + "computing step ");
  EXPECT_THAT(shown, HasSubstr("/100000 | loss "));
  run.signal(SIGTERM);
  const Ended ended = run.finish();
  EXPECT_EQ(ended.code, 75);
  EXPECT_THAT(ended.out, HasSubstr(kLine + "checkpoint "));  // in its place
  const Ended plain = expect_code(0, train(folder.path() / "plain", "3") + quiet);
  EXPECT_THAT(plain.out, Not(HasSubstr("\x1b")));
}

// Of each line that stays, the characters; a live line is cut where it is too long.
std::vector<std::size_t> widths_of(const std::string& shown) {
  std::vector<std::size_t> widths;
  std::istringstream lines(shown);
  for (std::string line; std::getline(lines, line);) {
    line.erase(0, line.rfind(kLine) == std::string::npos ? 0 : line.rfind(kLine) + kLine.size());
    std::erase(line, '\r');
    widths.push_back(static_cast<std::size_t>(std::count_if(line.begin(), line.end(), [](char c) {
      return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U;
    })));
  }
  return widths;
}

TEST(LiveLine, EveryLineOfARunFitsItsTerminal) {
  const TempFolder folder;
  OnTerminal run(train(folder.path() / "run", "3") +
                     Arguments{"--data.eval", kQuestions, "--log.every_steps", "1"},
                 Output::Standard, {}, {80, 30});
  const Ended ended = run.finish();
  EXPECT_EQ(ended.code, 0) << ended.out;
  for (const std::size_t width : widths_of(ended.out)) {
    EXPECT_LE(width, 80U) << ended.out;
  }
  EXPECT_THAT(ended.out, HasSubstr("step 3/3 | loss "));
  EXPECT_THAT(ended.out, HasSubstr(" tok/s | "));
}

TEST(LiveLine, CountsAnsweredPrompts) {
  const TempFolder folder;
  std::string prompts;
  for (int i = 0; i < 100; ++i) {
    prompts += "Once upon a time\n";
  }
  const fs::path answers = folder.path() / "answers.jsonl";
  const Ended ended =
      expect_lines({"generate", kModel, "--batch", "4", "--max-new-tokens", "400", "--prompts",
                    folder.write("prompts.txt", prompts).string(), "-o", answers.string()},
                   Output::Error, {"generating, "});
  EXPECT_THAT(ended.err, HasSubstr(" of 100 prompts … "));
  EXPECT_EQ(ended.out, "");
  EXPECT_THAT(read_file(answers), Not(HasSubstr("\x1b")));
}

// Lines of prompts and completions.
fs::path write_records(const TempFolder& folder, int count, const std::string& prompt) {
  std::string records;
  for (int i = 0; i < count; ++i) {
    records += json{{"prompt", prompt}, {"completion", "Lily"}}.dump() + "\n";
  }
  return folder.write("a.jsonl", records);
}

TEST(LiveLine, CountsEvaluatedQuestionsBesideJson) {
  const TempFolder folder;
  const Ended ended = expect_lines(
      {"eval", kModel, "--data", write_records(folder, 400, "Once"), "--batch", "1", "--json"},
      Output::Error, {"evaluating, "});
  EXPECT_THAT(ended.err, HasSubstr(" of 400 questions … "));
  EXPECT_EQ(json::parse(ended.out).at("samples"), 400);
}

// This process, and what it starts, on one core.
class OnOneCore {
 public:
  OnOneCore() {
    ::sched_getaffinity(0, sizeof before_, &before_);
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(static_cast<unsigned>(::sched_getcpu()), &one);
    ::sched_setaffinity(0, sizeof one, &one);
  }
  ~OnOneCore() { ::sched_setaffinity(0, sizeof before_, &before_); }
  OnOneCore(const OnOneCore&) = delete;
  OnOneCore& operator=(const OnOneCore&) = delete;

 private:
  cpu_set_t before_{};
};

TEST(LiveLine, CountsTokenizedSamplesOfAPreview) {
  const TempFolder folder;
  std::string prompt;
  for (int sentence = 0; sentence < 8; ++sentence) {
    prompt += "The girl went to the park with her dog on a sunny day. ";
  }
  const std::string data = write_records(folder, 40'000, prompt).string();
  Arguments preview = train(folder.path() / "run") + Arguments{"--json"};
  preview[0] = "data";
  preview.insert(preview.begin() + 1, "preview");
  std::replace(preview.begin(), preview.end(), kQuestions, data);
  const OnOneCore slowly;
  const Ended ended = expect_lines(preview, Output::Error, {"tokenizing " + data + ", "});
  EXPECT_THAT(ended.err, HasSubstr(" KB … "));
  EXPECT_EQ(json::parse(ended.out).at("samples"), 40'000);
}

TEST(LiveLine, TellsWhatACheckTries) {
  const TempFolder folder;
  Arguments check = train(folder.path() / "run") +
                    Arguments{"--model.init", "random", "--json", "--train.micro_batch", "2"};
  check[0] = "check";
  std::replace(check.begin(), check.end(), std::string("12"), std::string("4"));  // samples a step
  std::replace(check.begin(), check.end(), kModel, wide_bloom(folder.path() / "model").string());
  const Ended ended = expect_lines(check, Output::Error, {"training on the first batch"});
  EXPECT_TRUE(json::parse(ended.out).contains("items"));
}

TEST(LiveLine, TellsWhatABenchMeasures) {
  const TempFolder folder;
  const Ended ended = expect_lines(
      {"bench", "--model", (wide_bloom(folder.path() / "model") / "config.json").string(), "--seq",
       "512", "--micro-batch", "3", "--steps", "1", "--warmup", "0", "--dtype", "fp32", "--json"},
      Output::Error, {"measuring matrix products alone … "});
  EXPECT_TRUE(json::parse(ended.out).contains("step_seconds"));
}

TEST_F(Fetch, TellsOnATerminalThatItWaits) {
  hub.at_storage = [](const Asked&, Answer answer) {
    std::this_thread::sleep_for(std::chrono::seconds(2));
    return answer;
  };
  const Ended ended =
      expect_lines(kFetch, Output::Error, {"fetching " + kHubModel + " … 1 s"}, variables());
  EXPECT_EQ(ended.out, snapshot().string() + "\n");
}

}  // namespace
}  // namespace sherd::test
