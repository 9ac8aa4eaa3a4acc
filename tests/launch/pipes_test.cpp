#include "launch/pipes.h"

#include <csignal>

#include <fcntl.h>

#include "gtest/gtest.h"
#include "launch/signals.h"

namespace sherd::launch {
namespace {

TEST(Pipes, ReadWhatIsThereAndSeeTheEnd) {
  Pipe pipe = make_pipe();
  set_non_blocking(pipe.read_end.get());
  Bytes bytes = read_available(pipe.read_end.get());
  EXPECT_EQ(bytes.data, "");
  EXPECT_FALSE(bytes.at_end);

  write_all(pipe.write_end.get(), "hello");
  bytes = read_available(pipe.read_end.get());
  EXPECT_EQ(bytes.data, "hello");
  EXPECT_FALSE(bytes.at_end);

  pipe.write_end.close();
  EXPECT_TRUE(read_available(pipe.read_end.get()).at_end);
}

TEST(Pipes, AClosedDescriptorIsAtItsEnd) {
  EXPECT_TRUE(read_available(-1).at_end);
}

TEST(Pipes, WritingToNobodyIsQuietWhileSignalsAreQueued) {
  SignalQueue queue;
  Pipe pipe = make_pipe();
  pipe.read_end.close();
  write_all(pipe.write_end.get(), "lost");
  EXPECT_EQ(queue.next(), SIGPIPE);
}

TEST(FileDescriptor, MovesOwnership) {
  Pipe pipe = make_pipe();
  const int number = pipe.read_end.get();
  {
    const FileDescriptor moved(std::move(pipe.read_end));
    EXPECT_EQ(moved.get(), number);
    EXPECT_NE(::fcntl(number, F_GETFD), -1);
  }
  EXPECT_EQ(::fcntl(number, F_GETFD), -1);
}

}  // namespace
}  // namespace sherd::launch
