// TensorBoard's event files, taken apart again. (scripts/trackers reads them with TensorBoard's own
// reader.)

#include "llm/track/tensorboard.h"

#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <protozero/pbf_reader.hpp>

#include "files/hex.h"
#include "llm/track/crc32.h"
#include "sherd/error.h"
#include "tests/llm/track/tracked_runs.h"

namespace llm::track {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;

// An event of what is written here.
struct Event {
  std::int64_t step = 0;
  std::string version;
  bool starts = false;  // a session
  std::string text;     // that of "config"
  std::vector<std::pair<std::string, float>> scalars;
};

void read_value(protozero::pbf_reader value, Event& event) {
  std::string tag;
  while (value.next()) {
    if (value.tag() == 1) {
      tag = value.get_string();
    } else if (value.tag() == 2) {
      event.scalars.emplace_back(tag, value.get_float());
    } else if (value.tag() == 8) {
      EXPECT_EQ(tag, "config");
      protozero::pbf_reader tensor = value.get_message();
      while (tensor.next()) {
        tensor.tag() == 8 ? void(event.text = tensor.get_string()) : tensor.skip();
      }
    } else {
      value.skip();
    }
  }
}

Event event_of(const std::string& bytes) {
  Event event;
  protozero::pbf_reader message(bytes);
  while (message.next()) {
    if (message.tag() == 2) {
      event.step = message.get_int64();
    } else if (message.tag() == 3) {
      event.version = message.get_string();
    } else if (message.tag() == 7) {
      protozero::pbf_reader log = message.get_message();
      event.starts = log.next() && log.tag() == 1 && log.get_enum() == 1;
    } else if (message.tag() == 5) {
      protozero::pbf_reader summary = message.get_message();
      while (summary.next()) {
        read_value(summary.get_message(), event);
      }
    } else {
      message.skip();
    }
  }
  return event;
}

std::vector<Event> events_of(const std::string& bytes) {
  std::vector<Event> events;
  for (std::size_t at = 0; at < bytes.size();) {
    const std::uint64_t size = little_endian(bytes, at, 8);
    const std::string event = bytes.substr(at + 12, size);
    EXPECT_EQ(bytes.substr(at, size + 16), tf_record(event));
    events.push_back(event_of(event));
    at += size + 16;
  }
  return events;
}

std::vector<std::filesystem::path> files_in(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

TEST(Crc, AreThoseOfTheirCatalogue) {
  EXPECT_EQ(crc32("123456789"), 0xcbf43926U);
  EXPECT_EQ(crc32c("123456789"), 0xe3069283U);
  EXPECT_EQ(crc32("456789", crc32("123")), 0xcbf43926U);
}

TEST(TensorBoard, HasEachStepAndTheConfiguration) {
  const sherd::test::TempFolder folder;
  const TrackedRun run = run_in(folder);
  TensorBoard board({.kind = config::SinkKind::TensorBoard}, run);
  board.begin(0, {});
  const std::vector<Point> points = {{1, 1e9, {{"train/loss", 2.5}, {"train/epoch", 0.5}}},
                                     {2, 1e9, {{"train/loss", 1.25}}}};
  board.log(points);
  board.end(End::Finished);
  const std::filesystem::path in = folder.path() / "first" / "tensorboard";
  EXPECT_EQ(board.place(), "tensorboard --logdir " + in.string());
  const auto events = events_of(bytes_of(only_in(in, "events.out.tfevents.")));
  ASSERT_EQ(events.size(), 5U);
  EXPECT_EQ(events[0].version, "brain.Event:2");
  EXPECT_TRUE(events[1].starts);
  EXPECT_EQ(events[1].step, 0);
  EXPECT_THAT(events[2].text, HasSubstr("    [optim]\n    kind = \"adamw\"\n"));
  EXPECT_THAT(events[3].scalars, ElementsAre(Pair("train/loss", 2.5F), Pair("train/epoch", 0.5F)));
  EXPECT_EQ(events[4].step, 2);
  // As TensorBoard's own RecordWriter writes this event.
  const std::string bytes = bytes_of(only_in(in, "events.out.tfevents."));
  EXPECT_TRUE(sherd::files::hex_of(bytes.data(), bytes.size())
                  .ends_with("200000000000000029eda950090000000065cdcd4110022a130a110a0a747261696e"
                             "2f6c6f7373150000a03fc9665e62"));
}

TEST(TensorBoard, GoesOnInALaterFileThatTakesStepsBack) {
  const sherd::test::TempFolder folder;
  const TrackedRun run = run_in(folder);
  for (const std::int64_t steps_done : {0, 4, 4}) {
    TensorBoard board({.kind = config::SinkKind::TensorBoard}, run);
    board.begin(steps_done, {});
    const std::vector<Point> points = {{steps_done + 1, 1e9, {{"train/loss", 2.5}}}};
    board.log(points);
    board.end(End::Stopped);
  }
  const auto files = files_in(folder.path() / "first" / "tensorboard");
  ASSERT_EQ(files.size(), 3U);
  EXPECT_EQ(events_of(bytes_of(files[0]))[1].step, 0);
  for (const std::size_t later : {1U, 2U}) {
    const Event start = events_of(bytes_of(files[later]))[1];
    EXPECT_TRUE(start.starts);
    EXPECT_EQ(start.step, 5);
  }
}

TEST(TensorBoard, SaysWhereItCannotWrite) {
  const sherd::test::TempFolder folder;
  const std::string path = folder.write("file", "").string();
  TensorBoard board({config::SinkKind::TensorBoard, path}, run_in(folder));
  EXPECT_THROW(board.begin(0, {}), sherd::Error);
  EXPECT_EQ(bytes_of(path), "");
}

}  // namespace
}  // namespace llm::track
