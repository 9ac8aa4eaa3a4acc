// main() of tests that see LibTorch: every test draws the same numbers in each run, alone or with
// others. LibTorch itself seeds its generator from the system's entropy.

#include <cstdint>

#include <ATen/Context.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace {

constexpr uint64_t kSeed = 20260101;

class SeedsEachTest : public testing::EmptyTestEventListener {
  void OnTestStart(const testing::TestInfo& /*info*/) override { at::manual_seed(kSeed); }
};

}  // namespace

int main(int argc, char** argv) {
  testing::InitGoogleMock(&argc, argv);
  testing::UnitTest::GetInstance()->listeners().Append(new SeedsEachTest);  // which owns it
  return RUN_ALL_TESTS();
}
