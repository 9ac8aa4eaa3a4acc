#include "llm/config/measures.h"

#include "gtest/gtest.h"

namespace llm::config {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::minutes;
using std::chrono::seconds;

TEST(Measures, DurationsAreReadInTheirUnit) {
  EXPECT_EQ(duration_of("10 min"), minutes(10));
  EXPECT_EQ(duration_of("10min"), minutes(10));
  EXPECT_EQ(duration_of("90 s"), seconds(90));
  EXPECT_EQ(duration_of("2 h"), hours(2));
  EXPECT_EQ(duration_of("5 ms"), milliseconds(5));
  EXPECT_EQ(duration_of("1000 h"), hours(1000));
  for (const char* text : {"", "10", "min", "10  min", "10 minutes", "-1 s", "1.5 h", "1001 h",
                           "9223372036854775807 h", "99999999999999999999 s", "10 min "}) {
    EXPECT_EQ(duration_of(text), std::nullopt) << text;
  }
}

TEST(Measures, DurationsArePrintedInTheLargestUnit) {
  for (const char* text : {"10 min", "90 s", "2 h", "1500 ms", "61 min", "0 h"}) {
    EXPECT_EQ(to_text(*duration_of(text)), text);
  }
  EXPECT_EQ(to_text(minutes(120)), "2 h");
}

TEST(Measures, SaysHowOften) {
  EXPECT_EQ(every_of("never"), Every{});
  EXPECT_EQ(every_of("epoch"), Every::epoch());
  EXPECT_EQ(every_of("1 step"), Every::steps(1));
  EXPECT_EQ(every_of("500 steps"), Every::steps(500));
  EXPECT_EQ(every_of("10 min"), Every::time(minutes(10)));
  for (const char* text : {"never", "epoch", "1 step", "500 steps", "10 min"}) {
    EXPECT_EQ(to_text(*every_of(text)), text);
  }
  for (const char* text : {"", "0", "0 steps", "0 s", "5", "2 step", "5 epochs", "steps",
                           "-5 steps", "1.5 steps", "Epoch", "1000000000001 steps"}) {
    EXPECT_EQ(every_of(text), std::nullopt) << text;
  }
}

TEST(Measures, WarmsUpBySteps) {
  EXPECT_EQ(warmup_of("100 steps"), (Warmup{100, 0}));
  EXPECT_EQ(warmup_of("0 steps"), (Warmup{0, 0}));
}

TEST(Measures, WarmsUpByAShare) {
  EXPECT_EQ(warmup_of("0.03"), (Warmup{std::nullopt, 0.03}));
  EXPECT_EQ(warmup_of("0"), (Warmup{}));
  for (const char* text : {"", "5", "1.1", "-0.1", "nan", "3 %", "10 min"}) {
    EXPECT_EQ(warmup_of(text), std::nullopt) << text;
  }
}

}  // namespace
}  // namespace llm::config
