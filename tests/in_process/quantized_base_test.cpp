// `model.quantize`: adapters on a base whose frozen weights are in 8 bits.

#include <algorithm>

#include "llm/gguf/gguf_file.h"
#include "tests/in_process/run_program.h"
#include "tests/support/evaluations.h"

namespace sherd::test {
namespace {

using testing::HasSubstr;

const Arguments kQuantizedLora = {"--adapter.kind", "lora", "--adapter.rank",         "4",
                                  "--optim.lr",     "1e-2", "--optim.clip_grad_norm", "none"};

Arguments quantized_run(const fs::path& output, const std::string& steps = "6") {
  return train(output, steps) + kQuantizedLora + Arguments{"--model.quantize", "q8_0"};
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

// On one rank, and resumed on two.
TEST(QuantizedBase, GoesOnFromItsCheckpointAndStaysQuantized) {
  const TempFolder folder;
  const fs::path whole = folder.path() / "whole", other = folder.path() / "other";
  const Arguments micro_batch = {"--train.micro_batch", "6"};
  expect_code(0, quantized_run(whole) + micro_batch +
                     Arguments{"--checkpoint.every", "2 steps", "--checkpoint.keep", "9"});
  expect_code(0, on_ranks(2, quantized_run(other)) + micro_batch +
                     Arguments{"--checkpoint.resume", whole / "checkpoints/step-00000004"});
  const auto all = column(whole, "loss");
  EXPECT_EQ(column(other, "loss", 5), std::vector<double>(all.begin() + 4, all.end()));
  EXPECT_THAT(expect_code(64, train(whole, "8") + kQuantizedLora + micro_batch).err,
              HasSubstr("model.quantize was \"q8_0\" and is now \"none\""));
}

double loss_on_questions(const fs::path& model) {
  const Ended ended =
      expect_code(0, {"eval", model, "--data", kQuestions, "--loss-only", "--json"});
  return nlohmann::json::parse(ended.out).at("loss").get<double>();
}

// The run is evaluated on its base in 8 bits; the merged model has the folder's weights, which no
// rounding to 8 bits has touched.
TEST(QuantizedBase, IsEvaluatedGeneratesAndIsMerged) {
  const TempFolder folder;
  const fs::path output = folder.path() / "run", merged = folder.path() / "merged",
                 adapter = folder.path() / "adapter", file = folder.path() / "merged.gguf";
  expect_code(0, quantized_run(output));
  const double run = loss_on_questions(output);
  EXPECT_LT(run, 0.9 * loss_on_questions(kModel));
  expect_code(0, {"export", output, "--out", adapter});
  // The adapter alone is evaluated on the folder's base, the run on that in 8 bits.
  EXPECT_NE(loss_on_questions(adapter), run);
  const std::string prompts = prompts_file(folder);
  const auto written_by = [&](const fs::path& model) {
    return expect_code(0, {"generate", model, "--prompts", prompts, "--max-new-tokens", "40",
                           "--temperature", "1", "--seed", "1"})
        .out;
  };
  EXPECT_NE(written_by(output), written_by(adapter));
  expect_code(0, {"export", output, "--merged", "--out", merged});
  const double of_merged = loss_on_questions(merged);
  EXPECT_NE(of_merged, run);
  EXPECT_NEAR(of_merged, run, 5e-3 * run);
  expect_code(0, {"export", output, "--merged", "--gguf", file, "--dtype", "q8_0"});
  // The matrices of layers whose rows are a multiple of 32 numbers, and the embedding.
  const llm::gguf::GgufFile blocks(file);
  const auto is_q8_0 = [](const auto& tensor) {
    return tensor.type == llm::gguf::TensorType::Q8_0;
  };
  EXPECT_EQ(std::count_if(blocks.tensors().begin(), blocks.tensors().end(), is_q8_0), 31);
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
