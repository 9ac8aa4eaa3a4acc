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
  EXPECT_DOUBLE_EQ(rates.seconds({"linear float32", 1e6}), 1e-3);
  EXPECT_NEAR(rates.seconds({"linear float32", 1e7}), 3.1623e-3, 1e-6);
  EXPECT_DOUBLE_EQ(rates.seconds({"linear float32", 1e5}), 1e-4);
  EXPECT_DOUBLE_EQ(rates.seconds({"linear float32", 1e9}), 1e-1);
  EXPECT_EQ(rates.seconds({"linear float32", 0}), 0);
}

TEST(Rates, OfKindsThatWereNotMeasuredAreThoseOfProductsAndOfTheRest) {
  Rates rates;
  rates.operations_per_second = 1e9;
  rates.bytes_per_second = 1e6;
  const auto call = [](const char* kind, double amount, double moved) {
    return OperatorCall{.kind = kind, .amount = amount, .moved_bytes = moved};
  };
  EXPECT_DOUBLE_EQ(rates.seconds(call("linear 16 bits", 1e9, 0)), 1);
  EXPECT_DOUBLE_EQ(rates.seconds(call("swiglu_linear_backward 16 bits", 1e9, 1e6)), 2);
  EXPECT_DOUBLE_EQ(rates.seconds(call("attention 16 bits", 1e9, 0)), 1);
  EXPECT_DOUBLE_EQ(rates.seconds(call("rms_norm 16 bits", 5e5, 1e6)), 1);
  EXPECT_EQ(measured().seconds(call("rms_norm 16 bits", 5e5, 1e6)), 0);
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
  EXPECT_DOUBLE_EQ(kept->seconds({"linear float32", 1e8}), 1e-2);
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

// A run reads the table for its profile, and does not end for it.
TEST_F(KeptRates, OfAGpuThatAreDamagedAreNoneForAProfile) {
  std::ofstream(save_gpu_rates("h200-141g", h200_rates())) << "{";
  EXPECT_FALSE(readable_gpu_rates("h200-141g"));
  EXPECT_THROW((void)load_gpu_rates("h200-141g"), sherd::Error);
}

TEST_F(KeptRates, ComeBeforeThoseThatAreAssumed) {
  const Device& cpu = device_of_name("cpu");
  EXPECT_THAT(rates_of(cpu, {2, 1}).source, HasSubstr("assumed: "));
  EXPECT_THAT(rates_of(cpu, {2, 1}).source, HasSubstr("--calibrate"));
  save_rates({2, 1}, measured());
  EXPECT_EQ(rates_of(cpu, {2, 1}).source, "measured here");
  const Device& h200 = device_of_name("h200-141g");
  EXPECT_EQ(rates_of(h200, {2, 1}).source, "measured on an H200, 2026-11-26");
  GpuRates calibrated = h200_rates();
  calibrated.source = "calibrated";
  save_gpu_rates(h200.name, calibrated);
  EXPECT_EQ(rates_of(h200, {2, 1}).source, "calibrated");
  EXPECT_THAT(rates_of(device_of_name("h100-80g"), {2, 1}).source,
              HasSubstr("scaled from an H200, 2026-11-26"));
}

// The fastest linear product of the dtype, whatever else was measured.
TEST_F(KeptRates, TellThePeakOfACpu) {
  const Device& cpu = device_of_name("cpu");
  EXPECT_FALSE(peak_of(cpu, {2, 1}, c10::kFloat));  // nothing is assumed
  Rates rates = measured();
  rates.kinds["linear_backward float32"] = {{1e9, 0.05}};
  rates.kinds["swiglu_linear 16 bits"] = {{1e9, 0.01}};
  rates.kinds["attention float32"] = {{1e9, 1e-4}};
  rates.kinds["rms_norm float32"] = {{1e9, 1e-4}};
  save_rates({2, 1}, rates);
  const auto peak = peak_of(cpu, {2, 1}, c10::kFloat);
  ASSERT_TRUE(peak);
  EXPECT_DOUBLE_EQ(peak->operations_per_second, 2e10);
  EXPECT_THAT(peak->source, HasSubstr("--calibrate measured"));
  EXPECT_DOUBLE_EQ(peak_of(cpu, {2, 1}, c10::kBFloat16)->operations_per_second, 1e11);
  EXPECT_FALSE(peak_of(cpu, {1, 1}, c10::kFloat));
  std::ofstream(save_rates({2, 1}, rates)) << "{";
  EXPECT_FALSE(peak_of(cpu, {2, 1}, c10::kFloat));
}

TEST(Peak, OfAGpuIsItsVendorsIn16Bits) {
  const auto operations = [](const char* device) {
    return peak_of(device_of_name(device), {8, 1}, c10::kBFloat16)->operations_per_second;
  };
  EXPECT_EQ(operations("h100-80g"), 989e12);
  EXPECT_EQ(operations("a100-80g"), 312e12);
  EXPECT_EQ(operations("v100-32g"), 125e12);
  EXPECT_FALSE(peak_of(device_of_name("h100-80g"), {8, 1}, c10::kFloat));
}

TEST(Links, AreAssumedUnlessTheyAreGiven) {
  EXPECT_EQ(links_of(device_of_name("cpu"), 1, 2, std::nullopt).host_bytes_per_second, 0);
  EXPECT_THAT(links_of(device_of_name("cpu"), 2, 2, std::nullopt).source,
              HasSubstr("1.25 GB/s between hosts, assumed"));
  EXPECT_EQ(links_of(device_of_name("cpu"), 2, 2, 3.0).source, "3 GB/s between hosts");
  EXPECT_GT(links_of(device_of_name("h100-80g"), 1, 8, std::nullopt).rank_bytes_per_second, 1e11);
}

TEST(Links, OfAHostWithGpusAreThoseOfItsRanks) {
  const auto of_host = [](const char* device, int ranks) {
    return links_of(device_of_name(device), 2, ranks, std::nullopt).host_bytes_per_second;
  };
  EXPECT_DOUBLE_EQ(of_host("h100-80g", 8), 360e9);
  EXPECT_DOUBLE_EQ(of_host("h100-80g", 1), 45e9);
  EXPECT_DOUBLE_EQ(of_host("a100-80g", 4), 90e9);
  EXPECT_DOUBLE_EQ(of_host("v100-32g", 1), 11.25e9);
  EXPECT_DOUBLE_EQ(of_host("cpu", 1), of_host("cpu", 8));  // a host's own
  EXPECT_DOUBLE_EQ(links_of(device_of_name("h100-80g"), 2, 8, 3.0).host_bytes_per_second, 3e9);
}

TEST(Reserve, IsLeftOnGpusAlone) {
  constexpr std::int64_t kGibibyte = std::int64_t{1} << 30;
  EXPECT_EQ(reserve_bytes(device_of_name("cpu"), 8, 100 * kGibibyte), 0);
  EXPECT_EQ(reserve_bytes(device_of_name("h100-80g"), 1, 20 * kGibibyte), kGibibyte);
  EXPECT_EQ(reserve_bytes(device_of_name("h100-80g"), 8, 20 * kGibibyte), 2 * kGibibyte);
}

}  // namespace
}  // namespace llm::plan
