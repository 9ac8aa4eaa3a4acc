// main() of tests that see LibTorch: every test draws the same numbers in each run, alone or with
// others. LibTorch itself seeds its generator from the system's entropy.

#include <cstdint>
#include <mutex>

#include <ATen/CPUGeneratorImpl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace {

constexpr uint64_t kSeed = 20260101;

class SeedsEachTest : public testing::EmptyTestEventListener {
  // Of the CPU alone: GPUs would be initialised, and processes that are forked then cannot use
  // them.
  void OnTestStart(const testing::TestInfo& /*info*/) override {
    at::Generator generator = at::detail::getDefaultCPUGenerator();
    const std::lock_guard lock(generator.mutex());
    generator.set_current_seed(kSeed);
  }
};

}  // namespace

int main(int argc, char** argv) {
  testing::InitGoogleMock(&argc, argv);
  testing::UnitTest::GetInstance()->listeners().Append(new SeedsEachTest);  // which owns it
  return RUN_ALL_TESTS();
}
