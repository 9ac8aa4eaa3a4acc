// How stores are made: in order, in bounded memory, by one process, also after a kill.

#include "llm/inputs/prepare.h"

#include <atomic>
#include <cerrno>
#include <chrono>
#include <fstream>
#include <thread>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "llm/inputs/store_lock.h"
#include "llm/inputs/subset.h"
#include "tests/llm/inputs/stores.h"
#include "tests/support/expect_error.h"
#include "tests/support/without_system_call.h"

namespace llm::inputs {
namespace {

namespace fs = std::filesystem;
using sherd::test::bytes_of;
using sherd::test::expect_error;
using sherd::test::TempFolder;

constexpr std::size_t kSmallBlock = 64 << 10;
const FileReading kSkipping = {.bad = {.skip = true, .most_skipped = 1000}};

PrepareOptions small_blocks(const fs::path& folder) {
  PrepareOptions options;
  options.folder = folder;
  options.block_bytes = kSmallBlock;
  return options;
}

// Kills a child at the given point of the store's making; false if it came to its end.
bool is_killed_at(int number, const Source& source, const text::PromptEncoder& encoder,
                  const fs::path& folder) {
  const pid_t child = ::fork();
  if (child == 0) {
    PrepareOptions options = small_blocks(folder);
    int point = 0;
    options.at_point = [&](const char* /*name*/) {
      if (++point == number) {
        ::_exit(9);
      }
    };
    static_cast<void>(prepare(source, encoder, options));
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 9;
}

// Returns how many points there are.
int expect_the_same_after_kills(const Source& source, const text::PromptEncoder& encoder) {
  const TempFolder folder;
  const fs::path whole = folder.path() / "whole";
  static_cast<void>(prepare(source, encoder, small_blocks(whole)));
  const std::string bytes = bytes_of(store_in(whole));
  for (int point = 1;; ++point) {
    const fs::path cache = folder.path() / ("cache" + std::to_string(point));
    if (!is_killed_at(point, source, encoder, cache)) {
      return point - 1;
    }
    static_cast<void>(prepare(source, encoder, small_blocks(cache)));
    EXPECT_EQ(bytes_of(store_in(cache)), bytes) << "killed at point " << point;
    EXPECT_EQ(std::distance(fs::directory_iterator(cache), {}), 1) << "killed at point " << point;
  }
}

TEST(Prepare, GivesTheSameBytesAfterAKillAtAnyPoint) {
  const TempFolder folder;
  const auto lines = folder.write("a.jsonl", many_records(3000));
  const Source source = open_source(lines, kSkipping, {});
  const Prepared expected = prepare(source, stories(), {});
  EXPECT_GT(expected.report.duplicates, 20);
  EXPECT_EQ(expected.report.skipped, 60);
  EXPECT_GE(expect_the_same_after_kills(source, stories()), 20);
}

// Conversations of a format whose records are read one after the other, bad ones among them; some
// make several samples, between which a block may end.
TEST(Prepare, GivesTheSameBytesOfConversationsAfterAKillAtAnyPoint) {
  const TempFolder folder;
  std::string array;
  for (int i = 0; i < 500; ++i) {
    const std::string number = std::to_string(i);
    const std::string blank = i % 7 == 0 ? " " : "";  // which the template takes off later
    array += i == 0 ? "[" : ",\n";
    array += i % 50 == 49
                 ? R"({"messages": []})"
                 : R"({"messages": [{"role": "user", "content": "Who has )" + number +
                       R"( stones?"}, {"role": "assistant", "content": ")" + blank + "Child " +
                       number + R"( has."}, {"role": "user", "content": "And )" + number +
                       R"( of them?"}, {"role": "assistant", "content": "All )" + number + "\"}]}";
  }
  array += "]";
  const Source source = open_source(folder.write("a.json", array), kSkipping, {});
  const text::PromptEncoder encoder = chat_stories(
      512,
      "{% for m in messages %}<s>{{ m.role }}:{{ m.content if loop.last else m.content | trim }}"
      "</s>{% endfor %}{% if add_generation_prompt %}<s>assistant:{% endif %}");
  const Prepared expected = prepare(source, encoder, {});
  EXPECT_EQ(expected.report.skipped, 10);
  EXPECT_EQ(expected.report.chat.conversations, 490);
  EXPECT_GT(expected.report.samples, 490);
  EXPECT_GE(expect_the_same_after_kills(source, encoder), 20);
}

// Each start is killed at its first block, and none encodes what another has finished.
TEST(Prepare, KeepsFinishedBlocksOverManyKills) {
  const TempFolder folder;
  const Source source = open_source(folder.write("a.jsonl", many_records(3000)), kSkipping, {});
  const fs::path whole = folder.path() / "whole";
  static_cast<void>(prepare(source, stories(), small_blocks(whole)));
  const fs::path cache = folder.path() / "cache";
  constexpr int kAfterTheJournal = 4;
  int starts = 0;
  while (is_killed_at(kAfterTheJournal, source, stories(), cache)) {
    ASSERT_LT(++starts, 100);
  }
  EXPECT_GT(starts, 3);
  EXPECT_EQ(bytes_of(store_in(cache)), bytes_of(store_in(whole)));
}

TEST(Prepare, DoesNotDependOnThreadsOrBatches) {
  const TempFolder folder;
  const Source source = open_source(folder.write("a.jsonl", many_records(5000)), kSkipping, {});
  PrepareOptions one = small_blocks(folder.path() / "one");
  one.threads = 1;
  one.memory_bytes = 1;
  PrepareOptions many = small_blocks(folder.path() / "many");
  many.threads = 7;
  static_cast<void>(prepare(source, stories(), one));
  static_cast<void>(prepare(source, stories(), many));
  EXPECT_EQ(bytes_of(store_in(one.folder)), bytes_of(store_in(many.folder)));
}

// Over several batches, the samples are those of the file as a whole.
TEST(Prepare, GivesTheSamplesOfTheWholeFile) {
  const TempFolder folder;
  const auto lines = folder.write("a.jsonl", many_records(9000));
  for (const Limit& limit : {Limit{}, Limit{4000}, Limit{4000, true, 3}, Limit{1'000'000}}) {
    text::QuestionFile records = whole(lines, kSkipping);
    const auto most = static_cast<std::size_t>(limit.samples);
    if (limit.random) {
      std::vector<text::Question> drawn;
      for (const std::size_t index : subset(records.questions.size(), most, limit.seed)) {
        drawn.push_back(records.questions[index]);
      }
      records.questions = drawn;
    } else if (most > 0 && most < records.questions.size()) {
      records.questions.resize(most);
    }
    const Prepared found = prepare(open_source(lines, kSkipping, {}), stories(), {.limit = limit});
    EXPECT_EQ(found.report.skipped, 180);
    expect_samples(*found.store, encoded(records, stories()));
  }
}

// Bytes that this process has asked files for.
std::int64_t bytes_read() {
  std::ifstream io("/proc/self/io");
  std::string name;
  std::int64_t bytes = 0;
  io >> name >> bytes;
  return bytes;
}

TEST(Prepare, ReadsTheFileOnceForItsFirstRecords) {
  const TempFolder folder;
  const std::string records = many_records(20'000);
  const Source source = open_source(folder.write("a.jsonl", records), kSkipping, {});
  const text::PromptEncoder encoder = stories();
  const std::int64_t before = bytes_read();
  const Prepared found = prepare(source, encoder, {.limit = {100}});
  EXPECT_EQ(found.store->size(), 100U);
  EXPECT_EQ(found.report.skipped, 400);  // all are told
  EXPECT_LT(bytes_read() - before, std::ssize(records) * 3 / 2);
}

TEST(Prepare, RefusesBadRecordsAsTheWholeFileDoes) {
  const TempFolder folder;
  const auto lines = folder.write("a.jsonl", many_records(9000));
  const auto message_of = [](const auto& work) {
    try {
      work();
    } catch (const sherd::Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  for (const FileReading& reading :
       {FileReading{}, FileReading{.bad = {.skip = true, .most_skipped = 5}}}) {
    const std::string expected = message_of(
        [&] { static_cast<void>(text::read_records({lines.string()}, {.bad = reading.bad})); });
    EXPECT_THAT(expected, testing::HasSubstr("line 50"));
    EXPECT_EQ(message_of([&] {
                static_cast<void>(prepare(open_source(lines, reading, {}), stories(), {}));
              }),
              expected);
  }
  const auto none = folder.write("none.jsonl", "\n\n");
  expect_error([&] { static_cast<void>(prepare(open_source(none, {}, {}), stories(), {})); },
               sherd::ExitCode::BadData, {"none.jsonl: contains no records"});
  const auto array = folder.write("array.jsonl", "[1]");
  expect_error([&] { static_cast<void>(prepare(open_source(array, {}, {}), stories(), {})); },
               sherd::ExitCode::BadData, {"array.jsonl: not JSON lines: it begins with '['"});
}

// Over batches, files, threads and a kill at any point.
TEST(Prepare, CountsTheFieldsOfAllRecordsThatAreNotRead) {
  const TempFolder folder;
  std::string lines;
  for (int i = 0; i < 6000; ++i) {
    lines += std::string("{") + (i % 3 == 2 ? R"("id": 1, )" : "") +
             (i == 5000 ? R"("score": null, )" : "") + R"("prompt": "Child )" + std::to_string(i) +
             R"(", "completion": "It had stones."})" + "\n";
  }
  folder.write("part-1.jsonl", lines);
  folder.write("part-2.jsonl", lines + R"({"id": 1, "prompt": "no completion"})");
  const Source source = open_source(folder.path() / "part-*.jsonl", kSkipping, {});
  const Prepared found = prepare(source, stories(), small_blocks(folder.path() / "whole"));
  EXPECT_THAT(
      found.report.unread.all(),
      testing::ElementsAre(text::UnreadFields::Field{"id", 4000, "line 3 of part-1.jsonl"},
                           text::UnreadFields::Field{"score", 2, "line 5001 of part-1.jsonl"}));
  EXPECT_EQ(found.report.chat.conversations, 0);
  EXPECT_EQ(prepare(source, stories(), small_blocks(folder.path() / "whole")).report.unread.all(),
            found.report.unread.all());
  constexpr int kWithinTheThirdBlock = 10;
  const fs::path killed = folder.path() / "killed";
  ASSERT_TRUE(is_killed_at(kWithinTheThirdBlock, source, stories(), killed));
  EXPECT_EQ(prepare(source, stories(), small_blocks(killed)).store->digest(),
            found.store->digest());
}

// The same bytes hold other records where tabs separate fields.
TEST(Prepare, KeepsTablesOfOtherSeparatorsApart) {
  const TempFolder folder;
  const std::string bytes =
      "prompt,completion,\tprompt\tcompletion\nOnce upon,a time,\tThe dog\truns home\n";
  const PrepareOptions options = small_blocks(folder.path() / "cache");
  const auto text_of = [&](const std::string& name) {
    const Source source = open_source(folder.write(name, bytes), {}, {});
    const Prepared found = prepare(source, stories(), options);
    return stories().tokenizer().decode(found.store->at(0).ids);
  };
  EXPECT_THAT(text_of("a.csv"), testing::HasSubstr("Once upon a time"));
  EXPECT_THAT(text_of("a.tsv"), testing::HasSubstr("The dog runs home"));
  EXPECT_THAT(text_of("b.csv"), testing::HasSubstr("Once upon a time"));
  EXPECT_EQ(std::distance(fs::directory_iterator(options.folder), {}), 2);
}

// An attempt that refuses bad records leaves nothing behind that hides them from one that may skip.
TEST(Prepare, SkipsAllBadRecordsAfterAnAttemptThatRefusedThem) {
  const TempFolder folder;
  std::string lines;
  for (int i = 0; i < 3000; ++i) {
    const std::string prompt = i % 30 == 29 ? "\xf0\x9f\x8d\xa9" : "Child " + std::to_string(i);
    lines += R"({"prompt": ")" + prompt + R"(", "completion": "It had )" + std::to_string(i) +
             " stones and many more.\"}\n";
  }
  const auto path = folder.write("a.jsonl", lines);
  const text::PromptEncoder narrow = stories(36, 32);  // the character alone takes more tokens
  const PrepareOptions options = small_blocks(folder.path() / "cache");
  expect_error([&] { static_cast<void>(prepare(open_source(path, {}, {}), narrow, options)); },
               sherd::ExitCode::BadData, {"100 faults", "and 80 more"});
  const Prepared found = prepare(open_source(path, kSkipping, {}), narrow, options);
  EXPECT_EQ(found.report.skipped, 100);
  EXPECT_EQ(found.skipped.size(), 100U);
  const Prepared whole =
      prepare(open_source(path, kSkipping, {}), narrow, small_blocks(folder.path() / "other"));
  EXPECT_EQ(found.store->digest(), whole.store->digest());
}

TEST(Prepare, RefusesAFileThatChangesMeanwhile) {
  const TempFolder folder;
  const auto lines = folder.write("a.jsonl", many_records(20));
  const Source source = open_source(lines, kSkipping, {});
  folder.write("a.jsonl", many_records(21));
  expect_error([&] { static_cast<void>(prepare(source, stories(), {})); }, sherd::ExitCode::BadData,
               {"a.jsonl: changed while it was read"});
}

TEST(Prepare, IsDoneByOneOfSeveralWhileOthersWait) {
  const TempFolder folder;
  const Source source = open_source(folder.write("a.jsonl", many_records(3000)), kSkipping, {});
  std::atomic<int> made = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      made += prepare(source, stories(), small_blocks(folder.path() / "cache")).was_made ? 1 : 0;
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(made, 1);
}

// One of several reads the bad data, while the others wait for it; none of them reads it again.
TEST(Prepare, TellsThoseWhoWaitWhyItFailed) {
  const TempFolder folder;
  const Source source = open_source(folder.write("a.jsonl", many_records(3000)), {}, {});
  constexpr int kProcesses = 4;
  std::atomic<int> waiting = 0;
  std::atomic<int> encoding = 0;
  std::vector<std::string> messages(kProcesses);
  std::vector<std::thread> threads;
  for (int i = 0; i < kProcesses; ++i) {
    threads.emplace_back([&, i] {
      PrepareOptions options = small_blocks(folder.path() / "cache");
      bool encodes = false;
      bool waits = false;
      options.on_progress = [&](std::int64_t, std::int64_t, const std::string&) {
        encoding += std::exchange(encodes, true) ? 0 : 1;
        while (waiting < kProcesses - 1 && encoding == 1) {
          std::this_thread::yield();
        }
      };
      options.on_wait = [&](const std::string& /*progress*/) {
        waiting += std::exchange(waits, true) ? 0 : 1;
      };
      try {
        static_cast<void>(prepare(source, stories(), options));
      } catch (const sherd::Error& error) {
        EXPECT_EQ(error.code(), sherd::ExitCode::BadData);
        messages[static_cast<std::size_t>(i)] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(encoding, 1);
  EXPECT_THAT(messages[0], testing::HasSubstr("a.jsonl: 60 faults\n  line 50, "));
  EXPECT_THAT(messages, testing::Each(messages[0]));
  // The next start looks by itself, also where it may skip what was refused.
  const Source skipping = open_source(folder.path() / "a.jsonl", kSkipping, {});
  EXPECT_EQ(prepare(skipping, stories(), small_blocks(folder.path() / "cache")).report.skipped, 60);
}

// Another process takes the lock when this one has looked for the last time.
TEST(Prepare, SaysThatItsLockWasTakenOver) {
  const TempFolder folder;
  const Source source = open_source(folder.write("a.jsonl", many_records(300)), kSkipping, {});
  for (const std::string point :
       {"before a block", "after counting duplicates", "before the name"}) {
    PrepareOptions options = small_blocks(folder.path() / point);
    options.at_point = [&](const char* name) {
      if (name == point) {
        for (const auto& entry : fs::directory_iterator(options.folder)) {
          fs::remove_all(entry.path());
        }
      }
    };
    expect_error([&] { static_cast<void>(prepare(source, stories(), options)); },
                 sherd::ExitCode::StorageIo,
                 {".lock: another process took this lock over, since this one was silent for too "
                  "long. Start the same command again."});
  }
}

// As NFS without its lock service, or Lustre mounted without flock.
TEST(Prepare, KeepsNothingWhereFilesCannotBeLocked) {
  const TempFolder folder;
  const Source source = open_source(folder.write("a.jsonl", many_records(30)), kSkipping, {});
  const text::PromptEncoder encoder = stories();
  for (const int error : {ENOLCK, ENOSYS, EOPNOTSUPP}) {
    const int code = sherd::test::without_system_call(SYS_flock, error, [&] {
      const Prepared made = prepare(source, encoder, small_blocks(folder.path() / "cache"));
      const bool is_told =
          made.not_kept.find("the file system has no file locks: ") != std::string::npos;
      return is_told && made.store->size() == 30 ? 0 : 1;
    });
    EXPECT_EQ(code, 0) << error;
    EXPECT_TRUE(store_in(folder.path() / "cache").empty());
  }
}

TEST(StoreLock, IsTakenOverFromAHolderThatIsSilent) {
  const TempFolder folder;
  const fs::path path = folder.path() / "lock";
  const auto never = [] { return false; };
  const auto quiet = [](const std::string& /*progress*/) {};
  const StoreLock silent(path, never, quiet, {.touch = std::chrono::hours(1)});
  std::string told;
  StoreLock next(
      path, never, [&](const std::string& progress) { told = progress; },
      {.patience = std::chrono::milliseconds(300), .look = std::chrono::milliseconds(10)});
  EXPECT_TRUE(next.is_held());
  EXPECT_TRUE(next.was_taken_over());
  EXPECT_NO_THROW(next.require_held());
  expect_error([&] { silent.require_held(); }, sherd::ExitCode::StorageIo,
               {"another process took this lock over"});
}

TEST(StoreLock, IsWaitedForAsLongAsItsHolderLives) {
  const TempFolder folder;
  const fs::path path = folder.path() / "lock";
  const auto never = [] { return false; };
  const auto quiet = [](const std::string& /*progress*/) {};
  StoreLock holder(path, never, quiet, {.touch = std::chrono::milliseconds(20)});
  holder.tell("7 of 9 KB");
  std::string told;
  const StoreLock waiting(
      path, [&] { return told == "7 of 9 KB"; },
      [&](const std::string& progress) { told = progress; },
      {.patience = std::chrono::seconds(30), .look = std::chrono::milliseconds(10)});
  EXPECT_FALSE(waiting.is_held());
  EXPECT_FALSE(waiting.was_taken_over());
}

TEST(Source, KeepsTheDigestOfAFileThatDoesNotChange) {
  const TempFolder folder;
  const fs::path digests = folder.path() / "digests";
  const fs::path path = SHERD_TEST_SOURCE_DIR "/recipes/data/squad-32.json";
  const std::string digest = open_source(path, {}, {}).file.sha256;
  EXPECT_EQ(open_source(path, {}, digests).file.sha256, digest);
  EXPECT_EQ(open_source(path, {}, digests).file.sha256, digest);
  const auto fresh = folder.write("fresh.jsonl", "{}");
  static_cast<void>(open_source(fresh, {}, digests));  // it may change within its clock's tick
  const auto notes = fs::exists(digests) ? std::distance(fs::directory_iterator(digests), {}) : 0;
  EXPECT_LE(notes, 1);
  folder.write("fresh.jsonl", "[]");
  EXPECT_EQ(open_source(fresh, {}, digests).file.sha256, open_source(fresh, {}, {}).file.sha256);
}

}  // namespace
}  // namespace llm::inputs
