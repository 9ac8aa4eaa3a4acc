// Which micro-batch a plan is made for.

#include "llm/plan/run_plan.h"

#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "llm/inputs/sampler.h"
#include "llm/plan/meta_meter.h"
#include "llm/plan/planned_batches.h"
#include "tests/support/expect_error.h"

namespace llm::plan {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// Samples of these lengths, their last token supervised.
inputs::RunData data_of(const std::vector<std::int64_t>& lengths, std::int64_t epochs,
                        std::int64_t global_batch) {
  std::vector<text::LabelledPrompt> prompts;
  for (const std::int64_t length : lengths) {
    const auto tokens = static_cast<size_t>(length);
    text::LabelledPrompt prompt;
    prompt.ids.assign(tokens, 1);
    prompt.supervised.assign(tokens, 0);
    prompt.supervised.back() = 1;
    prompts.push_back(prompt);
  }
  const auto rows = static_cast<std::int64_t>(lengths.size());
  inputs::RunData data;
  data.training = inputs::Samples(prompts);
  data.rows = inputs::Rows::one_each(rows);
  data.length.rows = rows;
  data.length.steps_per_epoch = (rows + global_batch - 1) / global_batch;
  data.length.total_steps = epochs * data.length.steps_per_epoch;
  return data;
}

TEST(PlannedBatches, IsThatOfAnyRankAndStep) {
  config::RunConfig config;
  config.train.global_batch = 4;
  config.train.micro_batch = 1;
  const inputs::BatchShape shape = {4, 1, 2};
  std::vector<std::int64_t> lengths = {5, 9, 30, 7, 8, 6, 11, 10};
  for (size_t turn = 0; turn < lengths.size(); ++turn) {
    const PlannedBatches longest = planned_batches(data_of(lengths, 1, 4), config, shape);
    EXPECT_THAT(longest.training.sample_tokens, ElementsAre(30)) << turn;
    EXPECT_THAT(longest.training.supervised_tokens, ElementsAre(1));
    EXPECT_FALSE(longest.evaluation);
    EXPECT_THAT(longest.source, HasSubstr("1 sample, 30 tokens"));
    std::rotate(lengths.begin(), lengths.begin() + 1, lengths.end());
  }
}

// Four micro-batches of two ranks, which wait for the longer sample.
TEST(PlannedBatches, OfATypicalStepAreTheMeanOfTheLongestOfEachRank) {
  config::RunConfig config;
  config.train.global_batch = 4;
  config.train.micro_batch = 1;
  const inputs::RunData data = data_of({5, 9, 30, 7, 8, 6, 11, 10}, 1, 4);
  inputs::Sampler sampler(8, 4, static_cast<std::uint64_t>(config.train.seed));
  std::int64_t longest_tokens = 0;
  for (std::int64_t step = 0; step < 2; ++step) {
    const std::vector<std::int64_t> rows = sampler.batch(step);
    const auto tokens = [&](size_t place) {
      return static_cast<std::int64_t>(data.training[static_cast<size_t>(rows[place])].ids.size());
    };
    longest_tokens += std::max(tokens(0), tokens(1)) + std::max(tokens(2), tokens(3));
  }
  const PlannedBatches batches = planned_batches(data, config, {4, 1, 2});
  ASSERT_EQ(batches.typical.sample_tokens.size(), 1);
  EXPECT_NEAR(static_cast<double>(batches.typical.sample_tokens[0]),
              static_cast<double>(longest_tokens) / 4, 0.5);
  EXPECT_DOUBLE_EQ(batches.tokens_a_step, 43);
}

TEST(PlannedBatches, HasTheSamplesThatLieTogetherInTheRun) {
  config::RunConfig config;
  config.train.global_batch = 2;
  config.train.micro_batch = 2;
  const inputs::BatchShape shape = {2, 2, 1};
  const inputs::RunData data = data_of({1, 2, 3, 100, 5, 6, 7, 200}, 3, 2);
  std::int64_t most = 0;  // over three epochs, in whichever order they are drawn
  inputs::Sampler sampler(8, 2, static_cast<std::uint64_t>(config.train.seed));
  for (std::int64_t step = 0; step < 12; ++step) {
    std::int64_t tokens = 0;
    for (const std::int64_t row : sampler.batch(step)) {
      tokens += static_cast<std::int64_t>(data.training[static_cast<size_t>(row)].ids.size());
    }
    most = std::max(most, tokens);
  }
  const PlannedBatches longest = planned_batches(data, config, shape);
  EXPECT_EQ(longest.training.sample_tokens[0] + longest.training.sample_tokens[1], most);
}

TEST(PlannedBatches, OfWhatIsEvaluatedLieInFileOrder) {
  config::RunConfig config;
  config.train.global_batch = 1;
  config.eval.batch = 2;
  config.eval.generate = true;
  config.data.max_answer_tokens = 9;
  inputs::RunData data = data_of({5}, 1, 1);
  data.heldout.resize(1);
  data.heldout[0].dataset.samples = data_of({50, 5, 30, 31, 55}, 1, 1).training;
  const PlannedBatches longest = planned_batches(data, config, {1, 1, 1});
  ASSERT_TRUE(longest.evaluation);
  EXPECT_THAT(longest.evaluation->batch.sample_tokens, ElementsAre(30, 31));
  EXPECT_EQ(longest.evaluation->max_new_tokens, 9);
  config.eval.generate = false;
  EXPECT_EQ(planned_batches(data, config, {1, 1, 1}).evaluation->max_new_tokens, 0);
}

TEST(PlannedBatches, WithoutDataIsTheGreatestLength) {
  config::RunConfig config;
  config.train.micro_batch = 3;
  config.data.max_length = 100;
  EXPECT_THAT(planned_batches(config, 512).training.sample_tokens, ElementsAre(100, 100, 100));
  config.data.max_length = 1000;
  EXPECT_THAT(planned_batches(config, 512).training.supervised_tokens, ElementsAre(512, 512, 512));
}

TEST(Devices, AreRefusedByNameWhereNotKnown) {
  EXPECT_EQ(device_of_name("cpu").type, c10::DeviceType::CPU);
  sherd::test::expect_error(
      [] { (void)device_of_name("tpu"); }, sherd::ExitCode::Usage,
      {"unknown device 'tpu'", "h100-80g", "give a similar one, and its memory with --memory"});
}

TEST(PlannedStep, IsOfTheDeviceAndOfWhatIsEvaluated) {
  config::RunConfig config;
  config.model.path = SHERD_TEST_SOURCE_DIR "/tests/data/stories260k-hf";
  config.data.max_length = 256;
  const setup::ModelShape shape = setup::model_shape(config.model.path);
  const auto plan_on = [&](const char* device) {
    return plan_run(config, shape, {device_of_name(device), 1, 1}, planned_batches(config, 512))
        .memory;
  };
  const auto phase = [](const MemoryPlan& plan, const std::string& name) {
    const auto found = std::find_if(plan.phases.begin(), plan.phases.end(),
                                    [&](const auto& one) { return one.name == name; });
    return found == plan.phases.end() ? PhasePlan{} : *found;
  };
  EXPECT_TRUE(phase(plan_on("cpu"), "optimizer").items.contains(kLibrariesItem));
  EXPECT_FALSE(phase(plan_on("h100-80g"), "optimizer").items.contains(kLibrariesItem));
  for (const char* const device : {"cpu", "h100-80g"}) {
    EXPECT_GT(phase(plan_on(device), "optimizer").items.at(kKeptItem), 0) << device;
  }
  const auto at_once = phase(plan_on("h100-80g"), "forward").items;
  config.memory.loss_chunk_tokens = 16;
  const auto in_chunks = phase(plan_on("h100-80g"), "forward").items;
  EXPECT_NE(in_chunks, at_once);
  config.memory.loss_chunk_bytes = 1;  // tokens come first
  EXPECT_EQ(phase(plan_on("h100-80g"), "forward").items, in_chunks);
  config.memory.loss_chunk_tokens = std::nullopt;
  config.memory.loss_chunk_bytes = 16 * 2 * 512;  // a row has 512 logits of 2 bytes
  EXPECT_EQ(phase(plan_on("h100-80g"), "forward").items, in_chunks);
  EXPECT_EQ(phase(plan_on("cpu"), "evaluation").total_bytes, 0);
  config.data.eval = {{.path = "heldout.json"}};
  EXPECT_GT(phase(plan_on("cpu"), "evaluation").total_bytes, 0);
}

// LibTorch does not call cuDNN's attention deterministic.
TEST(PlannedStep, OfADeterministicRunHasNoCudnn) {
  config::RunConfig config;
  config.model.path = SHERD_TEST_SOURCE_DIR "/tests/data/stories260k-hf";
  config.data.max_length = 256;
  const setup::ModelShape shape = setup::model_shape(config.model.path);
  GpuRates rates = h200_rates();
  rates.launch_seconds = 0;
  const auto seconds = [&](config::AttentionKernel attention, bool deterministic) {
    config.device.attention = attention;
    config.train.deterministic = deterministic;
    return plan_run(config, shape, {.device = device_of_name("h200-141g"), .gpu_rates = rates},
                    planned_batches(config, 512))
        .time.step_seconds;
  };
  using enum config::AttentionKernel;
  EXPECT_NE(seconds(Auto, false), seconds(Flash, false));
  EXPECT_EQ(seconds(Auto, true), seconds(Flash, false));
}

TEST(RunPlan, FitsOnlyWithWhatIsInReserve) {
  RunPlan plan;
  plan.memory.peak_bytes = 800;
  plan.constant_bytes = 100;
  plan.available_bytes = 1000;
  plan.reserve_bytes = 100;
  EXPECT_TRUE(plan.fits());
  plan.reserve_bytes = 101;
  EXPECT_FALSE(plan.fits());
}

TEST(PlannedLine, NamesWhatTakesMostAndWhetherThatIsThere) {
  RunPlan plan;
  plan.memory.peak_bytes = std::int64_t{2} << 30;
  plan.memory.peak_phase = "backward";
  plan.memory.peak_item = "linear";
  plan.constant_bytes = 150 << 20;
  plan.available_bytes = std::int64_t{4} << 30;
  EXPECT_EQ(planned_line(plan),
            "memory: planned peak 2.0 GiB per rank, plus 150 MiB for the program (peak in "
            "backward: linear)");
  plan.available_bytes = std::int64_t{1} << 30;
  EXPECT_THAT(planned_line(plan),
              HasSubstr("\nmemory: a rank has 1.0 GiB: the run may run out. sherd plan"));
}

}  // namespace
}  // namespace llm::plan
