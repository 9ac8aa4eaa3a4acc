// Every strategy by configuration alone, with the losses of the first.

#include "tests/in_process/run_program.h"

namespace sherd::test {
namespace {

std::vector<double> losses_of(const Arguments& flags) {
  const TempFolder folder;
  const Ended ended =
      expect_code(0, on_ranks(4, train(folder.path() / "run", "3") +
                                     Arguments{"--train.micro_batch", "1"} + flags));
  return column(folder.path() / "run", "loss");
}

TEST(Strategies, AreChosenByConfigurationAlone) {
  const auto expected = losses_of({});
  const std::vector<Arguments> cases = {
      {"--parallel.strategy", "shard_grad_op"},
      {"--parallel.strategy", "shard_optimizer"},
      {"--parallel.strategy", "no_shard"},
      {"--parallel.strategy", "hybrid_shard", "--parallel.shard_size", "2"},
      {"--parallel.strategy", "hybrid_shard_grad_op", "--parallel.shard_size", "2"},
      {"--parallel.reshard_after_forward_size", "1"},
      {"--parallel.reshard_after_forward_size", "2"}};
  for (const Arguments& flags : cases) {
    const auto losses = losses_of(flags);
    for (size_t step = 0; step < expected.size(); ++step) {
      EXPECT_NEAR(losses[step], expected[step], 1e-5 * expected[step])
          << flags[0] << " " << flags[1] << ", step " << step + 1;
    }
  }
}

TEST(Strategies, ThatDoNotFitAreRefusedByName) {
  const TempFolder folder;
  const Ended ended =
      expect_code(64, on_ranks(2, train(folder.path() / "run") +
                                      Arguments{"--parallel.strategy", "no_shard",
                                                "--parallel.reshard_after_forward_size", "2"}));
  EXPECT_THAT(ended.err, testing::HasSubstr("reshard_after_forward_size 2 is for FullShard and "
                                            "HybridShard"));
}

}  // namespace
}  // namespace sherd::test
