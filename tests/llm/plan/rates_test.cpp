// Rates of a machine: what they say between and beyond what was measured, and that they are kept.

#include "llm/plan/rates.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/expect_error.h"
#include "tests/support/temp_folder.h"

namespace llm::plan {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

Rates measured() {
  Rates rates;
  rates.kinds["linear float32"] = {{1e6, 1e-3}, {1e8, 1e-2}};
  rates.source = "measured here";
  return rates;
}

TEST(Rates, LieBetweenAndBeyondWhatWasMeasured) {
  const Rates rates = measured();
  EXPECT_DOUBLE_EQ(rates.seconds("linear float32", 1e6), 1e-3);
  EXPECT_NEAR(rates.seconds("linear float32", 1e7), 3.1623e-3, 1e-6);
  EXPECT_DOUBLE_EQ(rates.seconds("linear float32", 1e5), 1e-4);
  EXPECT_DOUBLE_EQ(rates.seconds("linear float32", 1e9), 1e-1);
  EXPECT_EQ(rates.seconds("linear float32", 0), 0);
}

TEST(Rates, OfKindsThatWereNotMeasuredAreThoseOfProductsAndOfTheRest) {
  Rates rates;
  rates.operations_per_second = 1e9;
  rates.bytes_per_second = 1e6;
  EXPECT_DOUBLE_EQ(rates.seconds("swiglu_linear_backward 16 bits", 1e9), 1);
  EXPECT_DOUBLE_EQ(rates.seconds("attention 16 bits", 1e9), 1);
  EXPECT_DOUBLE_EQ(rates.seconds("rms_norm 16 bits", 1e6), 1);
  EXPECT_EQ(measured().seconds("rms_norm 16 bits", 1e6), 0);
}

class KeptRates : public testing::Test {
 protected:
  KeptRates() { setenv("XDG_CACHE_HOME", folder_.path().c_str(), 1); }
  ~KeptRates() override { unsetenv("XDG_CACHE_HOME"); }

 private:
  sherd::test::TempFolder folder_;
};

TEST_F(KeptRates, AreThoseOfTheirRanksAndThreads) {
  EXPECT_FALSE(load_rates({2, 1}));
  EXPECT_TRUE(fs::exists(save_rates({2, 1}, measured())));
  const auto kept = load_rates({2, 1});
  ASSERT_TRUE(kept);
  EXPECT_EQ(kept->source, "measured here");
  EXPECT_DOUBLE_EQ(kept->seconds("linear float32", 1e8), 1e-2);
  EXPECT_FALSE(load_rates({1, 2}));
  EXPECT_FALSE(load_rates({2, 2}));
  EXPECT_FALSE(load_rates({1, 1}));
}

TEST_F(KeptRates, ThatAreDamagedAreNamed) {
  const std::string path = save_rates({1, 1}, measured());
  std::ofstream(path) << R"({"format": 1, "source": "x"})";
  sherd::test::expect_error(
      [] {
        (void)load_rates({1, 1});
      },
      sherd::ExitCode::BadData, {path, "sherd bench --calibrate", "Remove it"});
}

TEST_F(KeptRates, ThatAreDamagedLeaveAPlanItsAssumptions) {
  std::ofstream(save_rates({1, 1}, measured())) << "{";
  EXPECT_THAT(rates_of(device_of_name("cpu"), {1, 1}).source,
              testing::AllOf(HasSubstr("assumed: "), HasSubstr("Remove it")));
}

TEST_F(KeptRates, ComeBeforeThoseThatAreAssumed) {
  const Device& cpu = device_of_name("cpu");
  EXPECT_THAT(rates_of(cpu, {2, 1}).source, HasSubstr("assumed: "));
  EXPECT_THAT(rates_of(cpu, {2, 1}).source, HasSubstr("--calibrate"));
  save_rates({2, 1}, measured());
  EXPECT_EQ(rates_of(cpu, {2, 1}).source, "measured here");
  EXPECT_THAT(rates_of(device_of_name("h100-80g"), {2, 1}).source,
              HasSubstr("assumed: 495 TFLOP/s"));
}

TEST(Links, AreAssumedUnlessTheyAreGiven) {
  EXPECT_EQ(links_of(device_of_name("cpu"), 1, std::nullopt).host_bytes_per_second, 0);
  EXPECT_THAT(links_of(device_of_name("cpu"), 2, std::nullopt).source,
              HasSubstr("1.25 GB/s between hosts, assumed"));
  EXPECT_EQ(links_of(device_of_name("cpu"), 2, 3.0).source, "3.00 GB/s between hosts");
  EXPECT_GT(links_of(device_of_name("h100-80g"), 1, std::nullopt).rank_bytes_per_second, 1e11);
}

}  // namespace
}  // namespace llm::plan
