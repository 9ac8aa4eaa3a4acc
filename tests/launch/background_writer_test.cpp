#include "launch/background_writer.h"

#include "gtest/gtest.h"
#include "launch/pipes.h"

namespace sherd::launch {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(BackgroundWriter, WritesInOrder) {
  Pipe pipe = make_pipe();
  set_non_blocking(pipe.read_end.get());
  BackgroundWriter writer(pipe.write_end.get());
  writer.push("one ");
  writer.push("two ");
  writer.push("three");
  writer.drain(seconds(10));
  EXPECT_EQ(writer.backlog_bytes(), 0U);
  EXPECT_EQ(read_available(pipe.read_end.get()).data, "one two three");
}

TEST(BackgroundWriter, NeverWaitsForAReader) {
  Pipe pipe = make_pipe();
  set_non_blocking(pipe.read_end.get());
  const std::string much(1 << 20, 'x');  // more than a pipe holds
  {
    BackgroundWriter writer(pipe.write_end.get());
    writer.push(much);
    writer.push(much);
    writer.drain(milliseconds(50));
    EXPECT_GT(writer.backlog_bytes(), much.size() / 2);
  }
  // Its thread still writes what it was at, and ends: the descriptor has to stay open.
  static_cast<void>(pipe.write_end.release());
  EXPECT_FALSE(read_available(pipe.read_end.get()).data.empty());
}

TEST(BackgroundWriter, GivesUpWhereNobodyReadsAnyMore) {
  Pipe pipe = make_pipe();
  BackgroundWriter writer(pipe.write_end.get());
  pipe.read_end.close();
  writer.push("for nobody");
  writer.drain(seconds(10));
  EXPECT_EQ(writer.backlog_bytes(), 0U);
}

}  // namespace
}  // namespace sherd::launch
