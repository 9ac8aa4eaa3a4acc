// A run that is stopped or refused before its first step ends at once.

#include <csignal>
#include <thread>

#include "tests/e2e/training.h"

namespace sherd::test {
namespace {

using testing::HasSubstr;
using testing::Not;

const std::string kManyQuestions = SHERD_TEST_SOURCE_DIR "/recipes/data/squad-1000-train.json";

TEST(EarlyFault, AFaultIsToldOnce) {
  const TempFolder folder;
  const Ended ended = expect_code(
      66, on_ranks(2, train(folder.path() / "run", "3") +
                          Arguments{"--train.micro_batch", "6", "--data.eval", "/no/such.json"}));
  const size_t first = ended.err.find("/no/such.json");
  ASSERT_NE(first, std::string::npos);
  EXPECT_THAT(ended.err, Not(HasSubstr("[rank 1] sherd:")));
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

// Tokens for more than one block of a store.
fs::path write_many_records(const TempFolder& folder) {
  std::ofstream file(folder.path() / "many.jsonl");
  for (int i = 0; i < 140'000; ++i) {
    file << R"({"prompt": "Who went to the park with number )" << i
         << R"(?", "completion": "Lily and her little dog"})"
         << "\n";
  }
  return folder.path() / "many.jsonl";
}

// A file in a folder whose path ends so; empty: there is none.
fs::path file_in(const fs::path& folder, const std::string& end) {
  std::error_code none_there;
  for (const auto& entry : fs::recursive_directory_iterator(folder, none_there)) {
    if (entry.path().string().ends_with(end)) {
      return entry.path();
    }
  }
  return {};
}

// Until a store's first block is finished.
void wait_for_a_block(const fs::path& folder) {
  std::error_code not_yet;
  for (fs::path journal; journal.empty() || fs::file_size(journal, not_yet) == 0 || not_yet;) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    journal = file_in(folder, "/journal");
  }
}

TEST(StopOfPreparation, SaysWhatIsKeptAndTheSameCommandContinues) {
  const TempFolder folder;
  const fs::path data = write_many_records(folder);
  const auto prepare = [&](const fs::path& cache) {
    return Arguments{"data",         "prepare", "--model.path", kModel,
                     "--data.train", data,      "--data.cache", cache};
  };
  const auto stopped = [&](int signal, const fs::path& cache) {
    Program program(prepare(cache));
    wait_for_a_block(cache);
    program.signal(signal);
    const Ended ended = program.finish();
    EXPECT_EQ(ended.code, 75) << ended.out << ended.err;
    EXPECT_THAT(ended.out,
                HasSubstr("stopped on request: no store is half-written, and " + cache.string() +
                          " keeps what is finished; the same command continues there"));
    EXPECT_EQ(ended.err, "");
    EXPECT_EQ(file_in(cache, ".store"), "");
  };
  stopped(SIGTERM, folder.path() / "terminated");
  stopped(SIGINT, folder.path() / "stopped");
  expect_code(0, prepare(folder.path() / "stopped"));
  expect_code(0, prepare(folder.path() / "whole"));
  EXPECT_TRUE(read_file(file_in(folder.path() / "stopped", ".store")) ==
              read_file(file_in(folder.path() / "whole", ".store")));
}

TEST(StopOfPreparation, WithoutACacheSaysThatNothingIsKept) {
  const TempFolder folder;
  Program program({"data", "prepare", "--json", "--model.path", kModel, "--data.train",
                   write_many_records(folder), "--data.cache", "none"},
                  {"TMPDIR=" + folder.path().string()});
  wait_for_a_block(folder.path());
  program.signal(SIGINT);
  const Ended ended = program.finish();
  EXPECT_EQ(ended.code, 75) << ended.out << ended.err;
  EXPECT_EQ(ended.out, "");
  EXPECT_THAT(ended.err, HasSubstr("stopped on request: nothing was kept, since data.cache is "
                                   "none; the same command starts over"));
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

}  // namespace
}  // namespace sherd::test
