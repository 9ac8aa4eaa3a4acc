// What is planned of a run, and what it then takes.

#include <algorithm>

#include "tests/e2e/training.h"

namespace sherd::test {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

const std::string kRecipe = "recipes/stories260k-squad-32.toml";

TEST(DryRun, SaysWhatARunWouldDoAndWritesNothing) {
  const TempFolder folder;
  const Arguments run = train(folder.path() / "run", "3");
  const Arguments dry = run + Arguments{"--dry-run", "-n",
                                        "2",         "--parallel.strategy",
                                        "no_shard",  "--parallel.prefetch_depth",
                                        "2"};
  const Ended ended = expect_code(0, dry);
  for (const char* const part :
       {"parallel.prefetch_depth = 2 has no effect: parallel.strategy gathers nothing",
        "max_steps = 3\n", "steps: 3 of 12 samples", "begins at the first step",
        "2 ranks on 1 host, no_shard", "fits: "}) {
    EXPECT_THAT(ended.out, HasSubstr(part));
  }
  EXPECT_TRUE(listing(folder.path()).empty());
  expect_code(0, run);
  EXPECT_THAT(expect_code(0, dry).out, HasSubstr("resumes from "));
  EXPECT_THAT(expect_code(64, dry + Arguments{"--train.seed", "5"}).err, HasSubstr("train.seed"));
}

// What its own operators take of memory for want of bf16 instructions is no GPU's.
TEST(PlanOfAGpu, IsTheSameOnAnyProcessor) {
  const Arguments plan = {
      "plan",  SHERD_TEST_SOURCE_DIR "/recipes/llama-3-8b.toml", "-n", "8", "--device", "h100-80g",
      "--json"};
  const std::string here = expect_code(0, plan).out;
  EXPECT_EQ(expect_code(0, plan, {"SHERD_CPU_ISA=none"}).out, here);
}

TEST(PlanOfARun, ChoosesTheMicroBatch) {
  const TempFolder folder;
  const Arguments run = train(folder.path() / "run", "3") +
                        Arguments{"--train.micro_batch", "auto", "--checkpoint.every", "1 steps"};
  const Ended whole = expect_code(0, on_ranks(2, run));
  EXPECT_THAT(whole.out, HasSubstr("train.micro_batch: "));
  EXPECT_THAT(whole.out, HasSubstr(", the fastest that fits"));
  fs::remove_all(folder.path() / "run/checkpoints/step-00000003");
  const Ended resumed = expect_code(0, on_ranks(2, run));
  EXPECT_THAT(resumed.out, HasSubstr("resumed from "));
  EXPECT_THAT(resumed.out, Not(HasSubstr("train.micro_batch: ")));  // as it began
  EXPECT_THAT(expect_code(0, {"plan", kRecipe, "--train.micro_batch", "auto"}).err,
              HasSubstr("train.micro_batch: "));
}

json plan_left_by(const fs::path& output) {
  return json::parse(read_file(output / "plan.json"));
}

TEST(PlanOfARun, IsLeftInItsFolderWithWhatWasMeasured) {
  const TempFolder folder;
  const fs::path output = folder.path() / "run";
  const Ended ended = expect_code(0, on_ranks(2, train(output, "3")));
  EXPECT_THAT(ended.out, HasSubstr("memory: planned peak "));
  const json plan = plan_left_by(output);
  EXPECT_EQ(plan.at("ranks"), 2);
  EXPECT_GT(plan.at("peak_bytes"), 0);
  EXPECT_EQ(plan.at("measured").at("rank_peak_bytes").size(), 2);
  EXPECT_GT(plan.at("measured").at("peak_bytes"), 0);
}

TEST(PlanOfARun, StaysWhereNoStepIsLeftToDo) {
  const TempFolder folder;
  const fs::path output = folder.path() / "run";
  expect_code(0, train(output, "3"));
  const json plan = plan_left_by(output);
  EXPECT_THAT(expect_code(0, train(output, "3")).out, HasSubstr("no step is left to do"));
  EXPECT_EQ(plan_left_by(output), plan);
}

// Planned ÷ measured of the rank that takes most, both beside what it takes before the model.
double planned_by_measured(const fs::path& config, const Arguments& more) {
  const Arguments run = {"bench",   "--model", config.string(), "-n", "2",
                         "--steps", "0",       "--warmup",      "1",  "--max-minutes",
                         "none",    "--json",  "--seq",         "256"};
  const json result = json::parse(expect_code(0, run + more).out);
  double measured = 0;
  for (size_t rank = 0; rank < 2; ++rank) {
    measured = std::max(measured, result.at("peak_rank_pss_bytes").at(rank).get<double>() -
                                      result.at("constant_rank_pss_bytes").at(rank).get<double>());
  }
  EXPECT_GT(measured, 300e6);
  return result.at("planned_peak_bytes").get<double>() / measured;
}

// benchmarks/plan has 40 more.
TEST(PlanOfARun, IsWithinFivePercentOfWhatALlamaTakes) {
  EXPECT_NEAR(planned_by_measured(SHERD_TEST_SOURCE_DIR "/benchmarks/peers/shapes/llama-135m.json",
                                  {"--dtype", "bf16"}),
              1, 0.05);
}

TEST(PlanOfARun, IsWithinFivePercentOfWhatABloomTakes) {
  const TempFolder folder;
  const fs::path config = folder.path() / "config.json";
  std::ofstream(config) << R"({"architectures": ["BloomForCausalLM"], "model_type": "bloom",
      "hidden_size": 512, "n_layer": 8, "n_head": 8, "vocab_size": 65536,
      "layer_norm_epsilon": 1e-5, "initializer_range": 0.02, "seq_length": 2048,
      "apply_residual_connection_post_layernorm": false})";
  EXPECT_NEAR(planned_by_measured(config, {"--dtype", "fp32", "--strategy", "shard_grad_op",
                                           "--checkpoint-activations"}),
              1, 0.05);
}

}  // namespace
}  // namespace sherd::test
