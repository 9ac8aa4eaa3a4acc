// What a program that is run in the test's process printed, where it ends before it can be read.

#include "tests/in_process/captured.h"

#include <csignal>
#include <cstdlib>
#include <iostream>
#include <stdexcept>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace sherd::test {
namespace {

int print_and(const std::function<int()>& end) {
  return captured({},
                  [&] {
                    std::cout << "the last step" << std::endl;
                    std::cerr << "the last warning" << std::endl;
                    return end();
                  })
      .code;
}

TEST(CapturedDeathTest, OutputsAreShownIfASignalEndsTheProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const std::string outputs = "the last step\nthe last warning\n";
  EXPECT_EXIT(print_and([]() -> int { std::abort(); }), testing::KilledBySignal(SIGABRT), outputs);
  for (const int signal : {SIGSEGV, SIGTERM}) {
    EXPECT_EXIT(print_and([&] { return ::raise(signal); }), testing::KilledBySignal(signal),
                outputs);
  }
}

TEST(Captured, OutputsAreShownIfTheProgramThrows) {
  testing::internal::CaptureStderr();
  EXPECT_THROW(print_and([]() -> int { throw std::invalid_argument("no program"); }),
               std::invalid_argument);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "the last step\nthe last warning\n");
}

TEST(Captured, OutputsAreReturnedIfItEnds) {
  testing::internal::CaptureStderr();
  const Ended ended = captured({"A=b"}, [] {
    std::cout << std::getenv("A") << std::endl;
    return 3;
  });
  EXPECT_EQ(ended.code, 3);
  EXPECT_EQ(ended.out, "b\n");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

}  // namespace
}  // namespace sherd::test
