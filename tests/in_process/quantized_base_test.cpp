// `model.quantize`: adapters on a base whose frozen weights are in 8 bits.

#include "tests/in_process/run_program.h"
#include "tests/support/evaluations.h"

namespace sherd::test {
namespace {

using testing::HasSubstr;

Arguments quantized_run(const fs::path& output, const std::string& steps = "6") {
  return train(output, steps) +
         Arguments{"--model.quantize",       "q8_0", "--adapter.kind", "lora",
                   "--adapter.rank",         "4",    "--optim.lr",     "1e-2",
                   "--optim.clip_grad_norm", "none"};
}

TEST(QuantizedBase, LearnsTheSameOnAnyNumberOfRanks) {
  const TempFolder folder;
  const auto losses = [&](int ranks, const char* micro_batch) {
    const fs::path output = folder.path() / ("run-" + std::to_string(ranks) + "-" + micro_batch);
    const Ended ended = expect_code(0, on_ranks(ranks, quantized_run(output, "8")) +
                                           Arguments{"--train.micro_batch", micro_batch});
    EXPECT_THAT(ended.out, HasSubstr("model.quantize: 5 weights are not quantized, because rows of "
                                     "Q8_0 are a multiple of 32 numbers: "
                                     "model.layers.0.mlp.down_proj.weight has rows of 172"));
    return column(output, "loss");
  };
  const auto two = losses(1, "6"), three = losses(1, "4");
  EXPECT_LT(two.back(), 0.95 * two.front());
  EXPECT_EQ(losses(2, "6"), two);
  EXPECT_EQ(losses(3, "4"), three);
}

TEST(QuantizedBase, GoesOnFromItsCheckpointAndStaysQuantized) {
  const TempFolder folder;
  const fs::path whole = folder.path() / "whole", first = folder.path() / "first",
                 other = folder.path() / "other";
  const Arguments saves = {"--checkpoint.every", "2 steps", "--checkpoint.keep", "9"};
  expect_code(0, quantized_run(whole) + saves);
  expect_code(0, quantized_run(other) +
                     Arguments{"--checkpoint.resume", whole / "checkpoints/step-00000004"});
  const auto all = column(whole, "loss");
  EXPECT_EQ(column(other, "loss", 5), std::vector<double>(all.begin() + 4, all.end()));
  EXPECT_THAT(
      expect_code(64, quantized_run(whole, "8") + Arguments{"--model.quantize", "none"}).err,
      HasSubstr("model.quantize was \"q8_0\" and is now \"none\""));
}

TEST(QuantizedBase, IsNotTrained) {
  const TempFolder folder;
  const Arguments quantized = {"--model.quantize", "q8_0"};
  EXPECT_THAT(expect_code(64, train(folder.path() / "all", "2") + quantized).err,
              HasSubstr("model.quantize = \"q8_0\" keeps model.layers.0.mlp.gate_proj.weight in 8 "
                        "bits, in which it cannot be trained: train an adapter"));
  EXPECT_THAT(expect_code(64, train(folder.path() / "part", "2") + quantized +
                                  Arguments{"--model.trainable", ".*layers.3.*q_proj.*"})
                  .err,
              HasSubstr("keeps model.layers.3.self_attn.q_proj.weight in 8 bits"));
}

}  // namespace
}  // namespace sherd::test
