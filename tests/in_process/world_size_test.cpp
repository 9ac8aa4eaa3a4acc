// The losses of a run do not depend on how its batches are cut over ranks and micro-batches.

#include "tests/in_process/run_program.h"

namespace sherd::test {
namespace {

TEST(WorldSize, ChangesNoLoss) {
  const TempFolder folder;
  const auto losses = [&](int ranks, const char* micro_batch) {
    const fs::path output = folder.path() / ("run-" + std::to_string(ranks) + "-" + micro_batch);
    expect_code(0, on_ranks(ranks, train(output, "8")) +
                       Arguments{"--train.micro_batch", micro_batch, "--optim.lr", "1e-4"});
    return column(output, "loss");
  };
  const auto one = losses(1, "12");
  ASSERT_EQ(one.size(), 8U);
  EXPECT_LT(one.back(), one.front());
  for (const auto& [ranks, micro_batch] : {std::pair{1, "4"}, {2, "3"}, {3, "2"}, {3, "4"}}) {
    const auto other = losses(ranks, micro_batch);
    ASSERT_EQ(other.size(), one.size());
    for (size_t step = 0; step < one.size(); ++step) {
      EXPECT_NEAR(other[step], one[step], 1e-6 * one[step]) << ranks << " ranks, step " << step + 1;
    }
  }
}

}  // namespace
}  // namespace sherd::test
