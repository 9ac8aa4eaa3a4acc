#include "llm/train/deterministic.h"

#include <cstdlib>
#include <string>

#include <ATen/Context.h>
#include <gtest/gtest.h>

#include "tests/support/expect_error.h"

namespace llm::train {
namespace {

constexpr const char* kName = "CUBLAS_WORKSPACE_CONFIG";

class Deterministic : public testing::Test {
 protected:
  Deterministic() { ::unsetenv(kName); }
  ~Deterministic() override { ::unsetenv(kName); }
  static std::string workspace() {
    const char* const value = std::getenv(kName);
    return value == nullptr ? "unset" : value;
  }
};

TEST_F(Deterministic, SetsTheWorkspaceOfCublasOnGpusAlone) {
  prepare_deterministic(false, c10::kCUDA);
  EXPECT_EQ(workspace(), "unset");
  prepare_deterministic(true, c10::kCPU);
  EXPECT_EQ(workspace(), "unset");
  prepare_deterministic(true, c10::kCUDA);
  EXPECT_EQ(workspace(), ":4096:8");
}

TEST_F(Deterministic, KeepsAWorkspaceThatRepeatsAndRefusesAnother) {
  ::setenv(kName, ":16:8", 1);
  prepare_deterministic(true, c10::kCUDA);
  EXPECT_EQ(workspace(), ":16:8");
  ::setenv(kName, ":0:0", 1);
  sherd::test::expect_error([] { prepare_deterministic(true, c10::kCUDA); }, sherd::ExitCode::Usage,
                            {"train.deterministic is true, and CUBLAS_WORKSPACE_CONFIG is \":0:0\"",
                             "set it to \":4096:8\" or \":16:8\", or unset it"});
}

TEST_F(Deterministic, AsksLibTorchOnGpusAlone) {
  const auto asks = [](bool wanted, c10::Device device) {
    const DeterministicAlgorithms while_it_lives(wanted, device);
    EXPECT_NE(at::globalContext().deterministicAlgorithms(),
              at::globalContext().deterministicFillUninitializedMemory());
    return at::globalContext().deterministicAlgorithms() &&
           !at::globalContext().deterministicAlgorithmsWarnOnly();
  };
  EXPECT_TRUE(asks(true, c10::Device(c10::kCUDA, 0)));
  EXPECT_FALSE(asks(false, c10::Device(c10::kCUDA, 0)));
  EXPECT_FALSE(asks(true, c10::kCPU));
  EXPECT_FALSE(at::globalContext().deterministicAlgorithms());
}

}  // namespace
}  // namespace llm::train
