#include "launch/stop_request.h"

#include <algorithm>
#include <array>
#include <csignal>
#include <cstddef>
#include <cstdint>

#include "gtest/gtest.h"
#include "launch/signals.h"
#include "tests/launch/child.h"

namespace sherd::launch::testing {
namespace {

TEST(StopRequest, IsNotThereAtFirst) {
  EXPECT_FALSE(StopRequest::requested());
}

class StopSignal : public ::testing::TestWithParam<int> {};

TEST_P(StopSignal, AsksOnce) {
  Child rank({actor(), "act", "0=stop"});
  rank.ranks(1);
  rank.signal(GetParam());
  EXPECT_EQ(rank.finish().status.shell_code(), 75);
}

TEST_P(StopSignal, EndsTheProcessTheSecondTime) {
  Child rank({actor(), "act", "0=stubborn"});
  rank.ranks(1);
  rank.signal(GetParam());
  EXPECT_EQ(rank.line(), "asked to stop");
  rank.signal(GetParam());
  EXPECT_EQ(rank.finish().status.signal, GetParam());
}

INSTANTIATE_TEST_SUITE_P(Each, StopSignal, ::testing::ValuesIn(kStopSignals));

// The launcher of this rank is the test itself. What it passes on may reach it more than once.
TEST(StopRequest, ARepetitionOfTheLaunchersIsNoSecondOne) {
  Child rank({actor(), "act", "0=stubborn:1"});
  rank.ranks(1);
  for (int i = 0; i < 3; ++i) {
    rank.signal(SIGTERM);
    EXPECT_EQ(rank.line(), "asked to stop");
  }
  rank.signal(SIGKILL);
  EXPECT_EQ(rank.finish().status.signal, SIGKILL);
}

TEST(StopRequest, ASecondOneOfTheLauncherCounts) {
  Child rank({actor(), "act", "0=stubborn:1"});
  rank.ranks(1);
  rank.signal(SIGTERM);
  EXPECT_EQ(rank.line(), "asked to stop");
  ::usleep(1'200'000);
  rank.signal(SIGTERM);
  EXPECT_EQ(rank.finish(seconds{5}).status.signal, SIGTERM);
}

#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)

// As a loop of MKL does: for about a second the stack pointer is where the numbers lie.
[[nodiscard]] bool numbers_survive(const FileDescriptor& ready) {
  alignas(64) static std::array<unsigned char, std::size_t{1} << 16> numbers;
  numbers.fill(0x5a);
  StopRequest::install(false);
  const char byte = 0;
  if (::write(ready.get(), &byte, 1) != 1) {
    return false;
  }
  unsigned char* end = numbers.data() + numbers.size();
  std::uint64_t turns = 3'000'000'000;
  asm volatile(
      "mov %%rsp, %%rbx\n"
      "mov %[end], %%rsp\n"
      "1: dec %[turns]\n"
      "jnz 1b\n"
      "mov %%rbx, %%rsp\n"
      : [end] "+r"(end), [turns] "+r"(turns)
      :
      : "rbx", "memory", "cc");
  const bool same = std::all_of(numbers.begin(), numbers.end(),
                                [](unsigned char number) { return number == 0x5a; });
  return StopRequest::requested() && same;
}

TEST(StopRequest, LeavesAloneWhatTheStackPointerIsUsedFor) {
  Pipe ready = make_pipe();
  const pid_t child = ::fork();
  if (child == 0) {
    ::_exit(numbers_survive(ready.write_end) ? 0 : 1);
  }
  char byte = 0;
  ASSERT_EQ(::read(ready.read_end.get(), &byte, 1), 1);
  ::usleep(100'000);
  ::kill(child, SIGTERM);
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

#endif

}  // namespace
}  // namespace sherd::launch::testing
