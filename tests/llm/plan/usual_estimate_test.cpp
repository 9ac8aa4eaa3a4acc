// What is usually estimated of large Llamas, beside what is planned.

#include "llm/plan/usual_estimate.h"

#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace llm::plan {
namespace {

using testing::HasSubstr;

model::DecoderConfig shape_of(std::int64_t hidden, std::int64_t layers, std::int64_t vocabulary) {
  model::DecoderConfig shape;
  shape.hidden_size = hidden;
  shape.layers = layers;
  shape.vocab_size = vocabulary;
  return shape;
}

EstimatedStep step(std::int64_t moments, std::int64_t activations, const StepTime& time) {
  constexpr std::int64_t kGb = 1'000'000'000;
  EstimatedStep made;
  made.memory.phases = {{"backward",
                         (10 + moments + activations) * kGb,
                         {{"travelling shards", 2 * kGb},
                          {"master shards", 4 * kGb},
                          {"gradient shards", 4 * kGb},
                          {"optimizer state", moments * kGb},
                          {"linear", activations * kGb}}}};
  made.memory.peak_bytes = made.memory.phases[0].total_bytes;
  made.before_bytes = kGb;
  made.time = time;
  return made;
}

std::vector<EstimateRow> rows_of(const model::DecoderConfig& shape) {
  return beside_estimate(*usual_estimate_of(shape), shape,
                         {.device = "a100-80g",
                          .ranks = 8,
                          .tokens = 8192,
                          .checkpointed = step(8, 3, {1.3, 0.3}),
                          .kept = step(8, 12, {1.0, 0.2}),
                          .narrow = step(4, 3, {1.3, 0.3}),
                          .across_hosts = {1.5, 0.5},
                          .tokens_per_second = 19'900});
}

const EstimateRow& row(const std::vector<EstimateRow>& rows, const std::string& what) {
  return *std::find_if(rows.begin(), rows.end(),
                       [&](const EstimateRow& one) { return one.what == what; });
}

TEST(UsualEstimate, IsOfTwoShapes) {
  EXPECT_EQ(usual_estimate_of(shape_of(4096, 32, 128'256))->model, "Llama 3 8B");
  EXPECT_EQ(usual_estimate_of(shape_of(8192, 80, 128'256))->model, "Llama 3 70B");
  EXPECT_FALSE(usual_estimate_of(shape_of(4096, 32, 32'000)));
  EXPECT_FALSE(usual_estimate_of(shape_of(4096, 80, 128'256)));
}

TEST(UsualEstimate, StandsBesideWhatIsPlannedRowByRow) {
  const auto rows = rows_of(shape_of(4096, 32, 128'256));
  const auto expect = [&](const char* what, const char* usual, const char* planned) {
    EXPECT_EQ(row(rows, what).usual, usual) << what;
    EXPECT_EQ(row(rows, what).planned, planned) << what;
  };
  expect("parameters, bfloat16", "16", "16.0");
  expect("float32 masters", "", "32.0");
  expect("gradients", "16", "32.0");
  expect("AdamW's moments, float32", "64", "64.0");
  expect("AdamW's moments, bfloat16", "", "32.0");
  expect("per GPU: checkpointed activations", "1-2", "3.0");
  expect("per GPU: total, on 8 GPUs", "12 + activations", "22.0");
  expect("... with moments of 16 bits", "", "18.0");
  expect("checkpointing: activations", "/ 2", "/ 4.0");
  expect("checkpointing: computing", "+ 33 %", "+ 25.0 %");
  expect("FSDP costs, within a host", "15-25 %", "30.0 %");
  expect("FSDP costs, two hosts", "up to 50 %", "50.0 %");
  expect("tokens/s of 8 x a100-80g", "2000-4000", "19900");
  EXPECT_THAT(row(rows, "per GPU: checkpointed activations").why,
              HasSubstr("layers' inputs 2.1, logits 2.1 (and 4.2 in float32)"));
}

TEST(UsualEstimate, Of70BDoesNotAddUpAndSaysSo) {
  const auto rows = rows_of(shape_of(8192, 80, 128'256));
  EXPECT_EQ(row(rows, "total").usual, "420-560");
  EXPECT_THAT(row(rows, "total").why, HasSubstr("add up to 840"));
  EXPECT_EQ(row(rows, "AdamW's moments, bfloat16").usual, "280");
  EXPECT_EQ(row(rows, "... with moments of 16 bits").usual, "70");
  EXPECT_TRUE(std::none_of(rows.begin(), rows.end(), [](const EstimateRow& one) {
    return one.what.starts_with("tokens/s");
  }));
}

}  // namespace
}  // namespace llm::plan
