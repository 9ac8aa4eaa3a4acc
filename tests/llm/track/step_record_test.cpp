// A step as a line and as JSON.

#include "llm/track/step_record.h"

#include <limits>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace llm::track {
namespace {

StepRecord record() {
  return {.step = 120,
          .total_steps = 1000,
          .loss = 1.23449,
          .grad_norm = 0.8712,
          .lr = 1.9e-5,
          .tokens = 16800,
          .supervised_tokens = 64,
          .step_seconds = 2,
          .peak_rank_bytes = 852'492'288,
          .data_wait_seconds = 0.25};
}

TEST(StepLine, IsForPeople) {
  EXPECT_EQ(step_line(record(), 2472.4),
            "step 120/1000 | loss 1.2345 | gnorm 0.871 | lr 1.9e-05 | 8.4k tok/s | mem 813 MiB | "
            "eta 00:41:12");
}

TEST(StepLine, TellsTheEpochWhereItIsKnown) {
  StepRecord with_epoch = record();
  with_epoch.epochs = 1.254;
  EXPECT_TRUE(step_line(with_epoch, 0).ends_with(" | eta 00:00:00 | epoch 1.25"));
  EXPECT_EQ(nlohmann::json::parse(step_json(with_epoch)).at("epoch"), 1.254);
}

TEST(StepLine, TellsTheUtilizationWhereItIsKnown) {
  StepRecord with_mfu = record();
  with_mfu.mfu = 0.4962;
  EXPECT_NE(step_line(with_mfu, 0).find(" tok/s | mfu 49.6% | mem "), std::string::npos);
  EXPECT_EQ(nlohmann::json::parse(step_json(with_mfu)).at("mfu"), 0.4962);
  EXPECT_FALSE(nlohmann::json::parse(step_json(record())).contains("mfu"));
}

TEST(StepLine, FitsTheTerminal) {
  StepRecord all = record();
  all.epochs = 1.254;
  all.mfu = 0.4962;
  EXPECT_EQ(step_line(all, 2472.4, 200), step_line(all, 2472.4));
  const std::string usual = step_line(all, 2472.4, 80);
  EXPECT_LE(usual.size(), 80U) << usual;
  for (const char* part : {"step 120/1000", "loss 1.2345", "lr 1.9e-05", "8.4k tok/s", "eta "}) {
    EXPECT_NE(usual.find(part), std::string::npos) << part;
  }
  all.step = 1'234'567;
  all.total_steps = 9'999'999;
  EXPECT_EQ(step_line(all, 2472.4, 20),
            "step 1234567/9999999 | loss 1.2345 | lr 1.9e-05 | eta 00:41:12");
}

TEST(NextStep, IsNoSecondLineOfTheLast) {
  StepRecord last = record();
  EXPECT_EQ(next_step_text(last, 2472.4, /*is_told=*/true), "computing step 121/1000");
  EXPECT_EQ(next_step_text(last, 2472.4, /*is_told=*/false),
            "computing step 121/1000 | loss 1.2345 | eta 00:41:12");
  last.step = 1000;
  EXPECT_EQ(next_step_text(last, 0, /*is_told=*/true), "after step 1000/1000");
}

TEST(StepLine, SaysThatNothingWasLearned) {
  StepRecord empty = record();
  empty.supervised_tokens = 0;
  EXPECT_NE(step_line(empty, 0).find("| no supervised token: nothing learned |"),
            std::string::npos);
}

TEST(StepJson, HasEveryNumber) {
  const auto json = nlohmann::json::parse(step_json(record()));
  EXPECT_EQ(json.at("step"), 120);
  EXPECT_EQ(json.at("loss"), 1.23449);  // every digit
  EXPECT_EQ(json.at("grad_norm"), 0.8712);
  EXPECT_EQ(json.at("lr"), 1.9e-5);
  EXPECT_EQ(json.at("tokens"), 16800);
  EXPECT_EQ(json.at("step_seconds"), 2);
  EXPECT_EQ(json.at("tokens_per_second"), 8400);
  EXPECT_EQ(json.at("peak_rank_bytes"), 852'492'288);
  EXPECT_EQ(json.at("data_wait_seconds"), 0.25);
}

TEST(StepJson, HasThePhasesThatWereTimed) {
  EXPECT_FALSE(nlohmann::json::parse(step_json(record())).contains("phase_seconds"));
  StepRecord timed = record();
  timed.phase_seconds = {{"forward", 0.5}, {"backward", 1.25}};
  EXPECT_EQ(nlohmann::json::parse(step_json(timed)).at("phase_seconds"),
            nlohmann::json({{"backward", 1.25}, {"forward", 0.5}}));
}

TEST(StepJson, HasNullForWhatIsNotFinite) {
  StepRecord broken = record();
  broken.loss = std::numeric_limits<double>::quiet_NaN();
  EXPECT_TRUE(nlohmann::json::parse(step_json(broken)).at("loss").is_null());
}

TEST(ShortForms, OfCountsBytesAndTimes) {
  EXPECT_EQ(short_count(950), "950");
  EXPECT_EQ(short_count(8400), "8.4k");
  EXPECT_EQ(short_count(1.23e6), "1.2M");
  EXPECT_EQ(short_count(8.0303e9), "8.03B");
  EXPECT_EQ(short_number(0.012345), "0.0123");
  EXPECT_EQ(short_number(12.345), "12.3");
  EXPECT_EQ(short_number(999.6), "1000");
  EXPECT_EQ(short_number(1123.4), "1123");
  EXPECT_EQ(short_bytes(852'492'288), "813 MiB");
  EXPECT_EQ(short_bytes(std::int64_t{3} << 29), "1.5 GiB");
  EXPECT_EQ(clock_text(3725.9), "01:02:05");
  EXPECT_EQ(clock_text(-1), "00:00:00");
}

}  // namespace
}  // namespace llm::track
