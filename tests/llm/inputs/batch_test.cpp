#include "llm/inputs/batch.h"

#include <numeric>

#include <gtest/gtest.h>

#include "tests/support/expect_error.h"

namespace llm::inputs {
namespace {

using sherd::ExitCode;
using sherd::test::expect_error;
using Ids = std::vector<std::int64_t>;

Ids range(std::int64_t count) {
  Ids ids(static_cast<std::size_t>(count));
  std::iota(ids.begin(), ids.end(), 0);
  return ids;
}

Ids to_vector(std::span<const std::int64_t> ids) {
  return {ids.begin(), ids.end()};
}

TEST(BatchShape, DealsMicroBatchesFirstThenRanks) {
  const BatchShape shape{8, 2, 2};
  const Ids batch = {10, 11, 12, 13, 14, 15, 16, 17};
  ASSERT_EQ(shape.micro_batches(8), 2);
  EXPECT_EQ(to_vector(shape.samples_of(batch, 0, 0)), (Ids{10, 11}));
  EXPECT_EQ(to_vector(shape.samples_of(batch, 0, 1)), (Ids{12, 13}));
  EXPECT_EQ(to_vector(shape.samples_of(batch, 1, 0)), (Ids{14, 15}));
  EXPECT_EQ(to_vector(shape.samples_of(batch, 1, 1)), (Ids{16, 17}));
}

TEST(BatchShape, LastBatchOfAnEpochMayLeaveRanksWithoutSamples) {
  const BatchShape shape{8, 2, 2};
  const Ids batch = {1, 2, 3};
  ASSERT_EQ(shape.micro_batches(3), 1);
  EXPECT_EQ(to_vector(shape.samples_of(batch, 0, 0)), (Ids{1, 2}));
  EXPECT_EQ(to_vector(shape.samples_of(batch, 0, 1)), (Ids{3}));
  EXPECT_TRUE(shape.samples_of(std::span(batch).first(1), 0, 1).empty());
}

TEST(BatchShape, AnyWorldSizeComputesTheSameMicroBatches) {
  for (const std::int64_t samples : {1, 5, 11, 12}) {
    const Ids batch = range(samples);
    std::vector<Ids> alone;
    const BatchShape one{12, 2, 1};
    for (std::int64_t micro = 0; micro < one.micro_batches(samples); ++micro) {
      alone.push_back(to_vector(one.samples_of(batch, micro, 0)));
    }
    for (const std::int64_t world : {2, 3, 6}) {
      const BatchShape shape{12, 2, world};
      std::vector<Ids> dealt;
      for (std::int64_t micro = 0; micro < shape.micro_batches(samples); ++micro) {
        for (std::int64_t rank = 0; rank < world; ++rank) {
          const Ids part = to_vector(shape.samples_of(batch, micro, rank));
          if (!part.empty()) {
            dealt.push_back(part);
          }
        }
      }
      EXPECT_EQ(dealt, alone) << samples << " samples on " << world << " ranks";
    }
  }
}

TEST(BatchShape, RefusesWhatDoesNotDivideAndSaysWhatWould) {
  EXPECT_NO_THROW((BatchShape{8, 4, 2}.validate()));
  const auto refusal = [](BatchShape shape, const std::vector<std::string>& parts) {
    expect_error([&] { shape.validate(); }, ExitCode::Usage, parts);
  };
  refusal({10, 2, 3},
          {"train.global_batch = 10 is not a multiple of 6 (3 ranks x train.micro_batch = 2)",
           "set train.global_batch = 6 or 12"});
  refusal({4, 4, 2}, {"set train.global_batch = 8, or train.micro_batch = 2"});
  refusal({12, 4, 2}, {"set train.global_batch = 8 or 16, or train.micro_batch = 3"});
  refusal({0, 1, 1}, {"train.global_batch (0)", "must be at least 1"});
  refusal({8, -1, 1}, {"train.micro_batch (-1)", "must be at least 1"});
}

const Samples& samples() {
  static const Samples all({
      {.ids = {1, 20, 21, 30, 2}, .supervised = {0, 0, 0, 1, 1}},
      {.ids = {1, 22, 31}, .supervised = {0, 0, 1}},
      {.ids = {1, 23, 24, 25}, .supervised = {0, 0, 0, 0}},  // nothing to learn from
  });
  return all;
}

TEST(Collate, PutsSamplesSideBySide) {
  const Batch batch = collate(samples(), Ids{1, 0});
  EXPECT_EQ(batch.input_ids, (Ids{1, 22, 31, 1, 20, 21, 30, 2}));
  EXPECT_EQ(batch.labels, (Ids{-100, -100, 31, -100, -100, -100, 30, 2}));
  EXPECT_EQ(batch.bounds, (Ids{0, 3, 8}));
  EXPECT_EQ(batch.supervised_tokens, 3);
  EXPECT_EQ(batch.tokens(), 8);
}

TEST(Collate, CountsASampleWithoutSupervisedTokens) {
  const Batch batch = collate(samples(), Ids{2});
  EXPECT_EQ(batch.labels, (Ids{-100, -100, -100, -100}));
  EXPECT_EQ(batch.supervised_tokens, 0);
  EXPECT_EQ(batch.tokens(), 4);
}

// As in a conversation: each answer of it counts, the questions between them do not.
TEST(Collate, LabelsEveryStretchThatIsSupervised) {
  const Samples turns({{.ids = {1, 20, 30, 2, 21, 31, 2}, .supervised = {0, 0, 1, 1, 0, 1, 1}}});
  const Batch batch = collate(turns, Ids{0});
  EXPECT_EQ(batch.labels, (Ids{-100, -100, 30, 2, -100, 31, 2}));
  EXPECT_EQ(batch.supervised_tokens, 4);
  EXPECT_EQ(turns[0].supervised_tokens(), 4);
  EXPECT_EQ(turns[0].prompt().size(), 2U);
}

TEST(Collate, ARankWithoutSamplesGetsAnEmptyBatch) {
  const Batch batch = collate(samples(), {});
  EXPECT_EQ(batch.bounds, Ids{0});
  EXPECT_TRUE(batch.input_ids.empty() && batch.labels.empty());
  EXPECT_EQ(batch.supervised_tokens + batch.tokens(), 0);
}

}  // namespace
}  // namespace llm::inputs
