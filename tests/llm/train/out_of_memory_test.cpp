// Failures of LibTorch that are for want of memory, as it throws them.

#include "llm/train/out_of_memory.h"

#include <cstdlib>
#include <fstream>
#include <map>
#include <string>

#include <ATen/ops/conv2d.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "llm/setup/agreement.h"

namespace llm::train {
namespace {

constexpr int kFine = 0;
constexpr int kSaysSo = 10;
constexpr int kOfOneDnn = 11;
constexpr int kSaysOther = 12;

rlim_t address_space_bytes() {
  std::ifstream file("/proc/self/statm");
  rlim_t pages = 0;
  file >> pages;
  return pages * static_cast<rlim_t>(::getpagesize());
}

// How a convolution ends, whose machine code oneDNN writes when it meets it first.
int convolve() {
  try {
    static_cast<void>(at::conv2d(at::ones({2, 16, 32, 32}), at::ones({16, 16, 3, 3})));
    return kFine;
  } catch (const std::exception& error) {
    const bool says = setup::says_out_of_memory(error);
    const bool of_one_dnn = std::string(error.what()).find("primitive") != std::string::npos;
    return !says ? kSaysOther : of_one_dnn ? kOfOneDnn : kSaysSo;
  }
}

// In a process of its own, which may map so many bytes more than it has.
int convolve_within(rlim_t bytes) {
  const pid_t child = ::fork();
  if (child == 0) {
    const rlimit limit{address_space_bytes() + bytes, RLIM_INFINITY};
    ::setrlimit(RLIMIT_AS, &limit);
    ::_exit(convolve());
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status)
                           : -1;  // the C++ library ends so where it cannot throw
}

TEST(OutOfMemory, IsToldByTheWordsOfOneDnnAndOfAllocators) {
  std::map<int, int> endings;
  for (rlim_t kib = 64; kib <= 4096; kib += 64) {
    ++endings[convolve_within(kib << 10)];
  }
  EXPECT_GT(endings[kOfOneDnn], 0) << "no limit made oneDNN fail";
  EXPECT_GT(endings[kFine], 0);
  try {
    static_cast<void>(at::empty({std::int64_t{1} << 50}));
    ADD_FAILURE();
  } catch (const c10::Error& error) {
    EXPECT_TRUE(setup::says_out_of_memory(error)) << error.what_without_backtrace();
  }
}

TEST(OutOfMemory, IsNotToldOfOtherFailures) {
  EXPECT_FALSE(
      setup::says_out_of_memory(std::runtime_error("could not create a primitive descriptor")));
  EXPECT_FALSE(setup::says_out_of_memory(
      c10::Error(c10::SourceLocation{"", "", 0}, "mat1 and mat2 shapes cannot be multiplied")));
}

}  // namespace
}  // namespace llm::train
