// Offline runs of W&B, taken apart again. (scripts/trackers reads them with the package's own
// reader.)

#include "llm/track/wandb.h"

#include <chrono>
#include <csignal>
#include <fstream>
#include <map>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <protozero/pbf_reader.hpp>

#include "files/hex.h"
#include "llm/track/crc32.h"
#include "llm/track/wandb_records.h"
#include "llm/track/wandb_sync.h"
#include "tests/llm/track/tracked_runs.h"
#include "tests/support/expect_error.h"

namespace llm::track {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;

// The records of a log, put together from their parts.
std::vector<std::string> records_of(const std::string& bytes) {
  EXPECT_EQ(bytes.substr(0, 7), std::string(":W&B\xe1\xbe\0", 7));
  std::vector<std::string> records;
  std::string whole;
  for (std::size_t at = 7; at < bytes.size();) {
    if (const std::size_t left = 32768 - at % 32768; left < 7) {
      EXPECT_EQ(bytes.substr(at, left), std::string(left, '\0'));
      at += left;
    }
    const std::size_t size = little_endian(bytes, at + 4, 2);
    const std::string typed = bytes.substr(at + 6, size + 1);
    EXPECT_EQ(little_endian(bytes, at, 4), crc32(typed));
    const char type = typed[0];
    EXPECT_EQ(type == 1 || type == 2, whole.empty()) << "first or only";
    whole += typed.substr(1);
    if (type == 1 || type == 4) {
      records.push_back(std::exchange(whole, ""));
    }
    at += 7 + size;
  }
  return records;
}

// A record's number and kind, with its strings and items by their fields' numbers.
struct Record {
  std::int64_t number = 0;
  std::uint32_t kind = 0;
  std::multimap<std::uint32_t, std::string> texts;
  std::map<std::uint32_t, std::int64_t> numbers;
  std::map<std::string, std::string> items;
};

void read_items(protozero::pbf_reader list, Record& record) {
  while (list.next(1)) {
    protozero::pbf_reader item = list.get_message();
    std::string key;
    while (item.next()) {
      item.tag() == 1 ? void(key = item.get_string()) : void(record.items[key] = item.get_string());
    }
  }
}

Record record_of(const std::string& bytes) {
  Record record;
  protozero::pbf_reader message(bytes);
  EXPECT_TRUE(message.next(1));
  record.number = message.get_int64();
  EXPECT_TRUE(message.next());
  record.kind = message.tag();
  const protozero::data_view inner = message.get_view();
  const bool is_run = record.kind == 17;
  if (!is_run && record.kind != 18) {
    read_items(protozero::pbf_reader(inner), record);
  }
  protozero::pbf_reader fields(inner);
  while (fields.next()) {
    if (fields.wire_type() == protozero::pbf_wire_type::varint) {
      const std::uint32_t tag = fields.tag();
      record.numbers[tag] = fields.get_int64();
    } else if (is_run && fields.tag() == 4) {
      read_items(fields.get_message(), record);
    } else {
      const std::uint32_t tag = fields.tag();
      record.texts.emplace(tag, fields.get_string());
    }
  }
  return record;
}

struct Session {
  std::filesystem::path folder;
  std::vector<Record> records;
  std::string words;
};

Session track(const TrackedRun& run, std::int64_t steps_done = 0, End how = End::Finished,
              const EarlierPoints& earlier = {}) {
  Wandb wandb({.kind = config::SinkKind::Wandb}, run);
  wandb.begin(steps_done, earlier);
  const std::int64_t step = steps_done + 1;
  const std::vector<Point> points = {{step, 1e9, {{"train/loss", 2.5}}},
                                     {step, 1e9 + 1, {{"eval/loss", 3}}},
                                     {step + 1, 1e9 + 2, {{"train/loss", 1.5}}}};
  wandb.log(points);
  wandb.end(how);
  Session session{wandb.closing_words().substr(wandb.closing_words().rfind(' ') + 1), {}, ""};
  session.words = wandb.closing_words();
  for (const std::string& bytes : records_of(bytes_of(only_in(session.folder, "run-")))) {
    session.records.push_back(record_of(bytes));
    EXPECT_EQ(session.records.back().number, std::int64_t(session.records.size()));
  }
  return session;
}

TEST(Wandb, HasRunStepsSummaryAndExit) {
  const sherd::test::TempFolder folder;
  const Session session = track(run_in(folder, {{"WANDB_RUN_ID", "abc"}}));
  EXPECT_THAT(session.folder.string(),
              AllOf(HasSubstr("/first/wandb/offline-run-2"), testing::EndsWith("-abc")));
  EXPECT_TRUE(std::filesystem::exists(session.folder / "run-abc.wandb"));
  EXPECT_EQ(session.words,
            "tracker wandb: to upload the run: wandb sync " + session.folder.string());
  ASSERT_EQ(session.records.size(), 5U);
  const Record& run = session.records[0];
  EXPECT_EQ(run.kind, 17U);
  EXPECT_THAT(run.texts,
              testing::IsSupersetOf({Pair(1U, "abc"), Pair(3U, "sherd"), Pair(8U, "first")}));
  EXPECT_THAT(run.items.at("optim"), HasSubstr("\"lr\":2e-05"));
  EXPECT_THAT(run.items.at("data"), HasSubstr("\"train\":[{\"path\":\"squad.json\""));
  const Record& row = session.records[1];  // the step with its evaluation
  EXPECT_EQ(row.kind, 2U);
  EXPECT_EQ(row.items.at("train/loss"), "2.5");
  EXPECT_EQ(row.items.at("eval/loss"), "3.0");
  EXPECT_EQ(row.items.at("_step"), "1");
  EXPECT_EQ(session.records[2].items.at("_step"), "2");
  const Record& summary = session.records[3];
  EXPECT_EQ(summary.kind, 3U);
  EXPECT_EQ(summary.items.at("train/loss"), "1.5");
  EXPECT_EQ(summary.items.at("eval/loss"), "3.0");
  const Record& exit = session.records[4];
  EXPECT_EQ(exit.kind, 18U);
  EXPECT_EQ(exit.numbers.at(1), 0);
}

TEST(Wandb, TakesItsEnvironment) {
  const sherd::test::TempFolder folder;
  const std::string elsewhere = (folder.path() / "elsewhere").string();
  const Variables variables = {
      {"WANDB_PROJECT", "p"},   {"WANDB_NAME", "n"},      {"WANDB_ENTITY", "e"},
      {"WANDB_TAGS", "a,b"},    {"WANDB_RUN_GROUP", "g"}, {"WANDB_JOB_TYPE", "j"},
      {"WANDB_NOTES", "noted"}, {"WANDB_DIR", elsewhere}, {"WANDB_API_KEY", "canary"}};
  const Session session = track(run_in(folder, variables));
  EXPECT_TRUE(session.folder.string().starts_with(elsewhere + "/wandb/offline-run-"));
  EXPECT_THAT(
      session.records[0].texts,
      testing::IsSupersetOf({Pair(2U, "e"), Pair(3U, "p"), Pair(6U, "g"), Pair(7U, "j"),
                             Pair(8U, "n"), Pair(9U, "noted"), Pair(10U, "a"), Pair(10U, "b")}));
  const Session configured =
      track(run_in(folder, variables, {.name = "N", .project = "P", .tags = {"T"}}));
  EXPECT_THAT(configured.records[0].texts,
              testing::IsSupersetOf({Pair(3U, "P"), Pair(8U, "N"), Pair(10U, "T")}));
  EXPECT_EQ(configured.records[0].texts.count(10U), 1U);
  EXPECT_TRUE(wandb_is_disabled(run_in(folder, {{"WANDB_MODE", "disabled"}})));
  EXPECT_FALSE(wandb_is_disabled(run_in(folder, {{"WANDB_MODE", "offline"}})));
  const TrackedRun online = run_in(folder, {{"WANDB_MODE", "online"}});
  EXPECT_THAT(Wandb({}, online).place(), testing::HasSubstr("(WANDB_MODE=online: nothing is sent"));
  EXPECT_THAT(Wandb({.sync = true}, online).place(), testing::Not(testing::HasSubstr("online")));
  sherd::test::expect_error(
      [&] {
        Wandb({}, run_in(folder, {{"WANDB_RUN_ID", "../x"}}));
      },
      sherd::ExitCode::Usage, {"WANDB_RUN_ID = '../x' cannot name a run"});
}

TEST(Wandb, GoesOnUnderTheSameIdentifier) {
  const sherd::test::TempFolder folder;
  const TrackedRun run = run_in(folder);
  const auto id_of = [](const Session& session) {
    return session.records[0].texts.find(1U)->second;
  };
  const Session first = track(run, 0, End::Stopped);
  const Session second = track(run, 2);
  const Session anew = track(run, 0, End::Failed);
  EXPECT_EQ(first.records.back().numbers.at(1), 255);
  EXPECT_EQ(anew.records.back().numbers.at(1), 1);
  EXPECT_EQ(id_of(first), id_of(second));
  EXPECT_NE(first.folder, second.folder);
  EXPECT_NE(id_of(first), id_of(anew));
  EXPECT_EQ(second.records[0].numbers.at(14), 3);
}

// A server lets the folder that it gets last stand for the run.
TEST(Wandb, HoldsWhatEarlierSessionsHaveLogged) {
  const sherd::test::TempFolder folder;
  const EarlierPoints earlier = [](const std::function<void(const Point&)>& take) {
    take({1, 9e8, {{"train/loss", 4.5}}});
    take({2, 9e8 + 1, {{"train/loss", 3.5}}});
    take({2, 9e8 + 2, {{"eval/loss", 5.5}}});
  };
  const Session session = track(run_in(folder), 2, End::Finished, earlier);
  ASSERT_EQ(session.records.size(), 7U);
  EXPECT_FALSE(session.records[0].numbers.contains(14));  // it starts at the first step
  std::vector<std::string> steps;
  for (std::size_t i = 1; i <= 4; ++i) {
    steps.push_back(session.records[i].items.at("_step"));
  }
  EXPECT_THAT(steps, ElementsAre("1", "2", "3", "4"));
  EXPECT_EQ(session.records[2].items.at("train/loss"), "3.5");
  EXPECT_EQ(session.records[2].items.at("eval/loss"), "5.5");
  EXPECT_EQ(session.records[2].items.at("_runtime"), "2.0");
  EXPECT_EQ(session.records[3].items.at("train/loss"), "2.5");
}

TEST(WandbLog, HasTheBytesOfThePackagesOwn) {
  const sherd::test::TempFolder folder;
  const std::string path = folder.path() / "run-x.wandb";
  WandbLog(path).write(numbered(1, exit_record(End::Stopped, 7)));
  const std::string bytes = bytes_of(path);
  EXPECT_EQ(sherd::files::hex_of(bytes.data(), bytes.size()),
            "3a572642e1be00e5b3ab0e0a0001080192010508ff011007");
}

TEST(WandbLog, CrossesBlocks) {
  const sherd::test::TempFolder folder;
  const std::string path = folder.path() / "run-x.wandb";
  std::vector<std::string> written;
  {
    WandbLog log(path);
    // The second leaves less room in its block than a part's header takes, the third none.
    for (const std::size_t size : {10U, 32768U - 7U - 17U - 7U - 3U, 32768U - 7U, 100'000U, 0U}) {
      written.emplace_back(size, static_cast<char>('a' + written.size()));
      log.write(written.back());
    }
  }
  EXPECT_EQ(records_of(bytes_of(path)), written);
}

TEST(WandbRecords, KnowWhatIsNotFinite) {
  const Record row =
      record_of(numbered(1, history_record({1, 0, {{"a", NAN}, {"b", -INFINITY}}}, 0)));
  EXPECT_EQ(row.items.at("a"), "NaN");
  EXPECT_EQ(row.items.at("b"), "-Infinity");
}

// A program of this name stands for the user's own.
class WandbSync : public testing::Test {
 protected:
  void write_program(const std::string& script) {
    const auto program = folder_.write("wandb", "#!/bin/sh\n" + script);
    std::filesystem::permissions(program, std::filesystem::perms::owner_all);
    path_ = std::getenv("PATH");
    ::setenv("PATH", (folder_.path().string() + ":" + path_).c_str(), 1);
  }
  void TearDown() override { ::setenv("PATH", path_.c_str(), 1); }
  std::string words_at_end(End how) {
    Wandb wandb({.kind = config::SinkKind::Wandb, .sync = true}, run_in(folder_));
    wandb.begin(0, {});
    wandb.end(how);
    return wandb.closing_words();
  }
  [[nodiscard]] std::string file(const std::string& name) const {
    return (folder_.path() / name).string();
  }
  sherd::test::TempFolder folder_;

 private:
  std::string path_ = std::getenv("PATH");
};

TEST_F(WandbSync, RunsWhereTheRunHasFinished) {
  write_program("echo \"$@\" > " + (folder_.path() / "asked").string() + "\n");
  EXPECT_THAT(words_at_end(End::Stopped), HasSubstr("to upload the run: wandb sync /"));
  EXPECT_FALSE(std::filesystem::exists(folder_.path() / "asked"));
  EXPECT_THAT(words_at_end(End::Finished), HasSubstr("synchronised by wandb sync /"));
  EXPECT_TRUE(bytes_of(folder_.path() / "asked").starts_with("sync " + folder_.path().string()));
}

TEST_F(WandbSync, SaysThatItFailed) {
  write_program("exit 3\n");
  EXPECT_THAT(words_at_end(End::Finished),
              HasSubstr("wandb sync failed; its output is above. To try again: wandb sync /"));
}

// The child neither waits for a terminal nor sees the secrets of others.
TEST_F(WandbSync, IsAwayFromTheTerminalAndFromOthersSecrets) {
  ::setenv("HF_TOKEN", "canary", 1);
  ::setenv("MLFLOW_TRACKING_PASSWORD", "canary", 1);
  ::setenv("WANDB_API_KEY", "mine", 1);
  write_program("env > " + file("environment") + "; cut -d' ' -f6 /proc/$$/stat > " +
                file("session") + "; echo $$ > " + file("pid") + "; cat > " + file("input") + "\n");
  EXPECT_THAT(words_at_end(End::Finished), HasSubstr("synchronised by"));
  for (const char* const name : {"HF_TOKEN", "MLFLOW_TRACKING_PASSWORD", "WANDB_API_KEY"}) {
    ::unsetenv(name);
  }
  EXPECT_THAT(bytes_of(file("environment")), HasSubstr("WANDB_API_KEY=mine"));
  EXPECT_THAT(bytes_of(file("environment")), testing::Not(HasSubstr("canary")));
  EXPECT_EQ(bytes_of(file("input")), "");
  EXPECT_EQ(std::stoi(bytes_of(file("session"))), std::stoi(bytes_of(file("pid"))));
}

TEST_F(WandbSync, IsEndedWithAllThatItStarted) {
  write_program("sleep 60 &\necho $! > " + file("child") + "\nwait\n");
  const auto start = std::chrono::steady_clock::now();
  const std::string words = run_sync("a folder", std::chrono::milliseconds(300), {});
  EXPECT_EQ(words,
            "tracker wandb: wandb sync took longer than 0.3 s, and was ended. To try again: wandb "
            "sync 'a folder'");
  EXPECT_THAT(run_sync("f", std::chrono::minutes(5), [] { return true; }),
              HasSubstr("wandb sync was ended because a stop was requested"));
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
}

// Where nobody keeps the children's ends, theirs is not waited for.
TEST_F(WandbSync, SaysThatItDoesNotKnowHowItEnded) {
  write_program("exit 0\n");
  const auto before = std::signal(SIGCHLD, SIG_IGN);
  EXPECT_THAT(run_sync("f", std::chrono::minutes(5), {}),
              HasSubstr("has ended, with an unknown result"));
  std::signal(SIGCHLD, before);
}

TEST_F(WandbSync, SaysThatThereIsNone) {
  ::setenv("PATH", folder_.path().c_str(), 1);
  EXPECT_THAT(words_at_end(End::Finished), HasSubstr("the program wandb could not be started"));
}

}  // namespace
}  // namespace llm::track
