// Which share of the peak a run computes at, where that is known: in its log and wherever it is
// looked at.

#include <map>

#include "tests/in_process/run_program.h"
#include "tests/support/evaluations.h"

namespace sherd::test {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

constexpr double kPeak = 1e11;

// Rates of this processor, as `sherd bench --calibrate` leaves them for one rank of one thread.
void write_rates(const fs::path& cache, const std::string& isa) {
  std::ifstream info("/proc/cpuinfo");
  std::map<std::string, std::string> first;
  for (std::string line; std::getline(info, line) && !line.empty();) {
    const std::size_t colon = line.find(':');
    first[line.substr(0, line.find_last_not_of(" \t", colon - 1) + 1)] =
        line.substr(std::min(line.size(), colon + 2));
  }
  const fs::path folder = cache / "sherd/rates";
  fs::create_directories(folder);
  std::ofstream(folder / (first["vendor_id"] + "-" + first["cpu family"] + "-" + first["model"] +
                          "-" + isa + "-1x1.json"))
      << json{{"format", 1},
              {"source", "measured here"},
              {"kinds", {{"linear float32", {{1e9, 1e9 / kPeak}}}}}};
}

TEST(Mfu, IsToldWhereThePeakIsKnownAndChangesNothing) {
  const TempFolder folder;
  const fs::path plain = folder.path() / "plain";
  const fs::path known = folder.path() / "known";
  EXPECT_THAT(expect_code(0, train(plain, "4")).out, Not(HasSubstr("mfu")));
  EXPECT_FALSE(read_log(plain / "log.jsonl").front().contains("mfu"));
  const json begin = events(plain, "begin").front();
  EXPECT_FALSE(begin.contains("peak_operations_per_second"));
  write_rates(folder.path() / "cache", begin.at("isa"));
  const Ended ended =
      expect_code(0, train(known, "4"), {"XDG_CACHE_HOME=" + (folder.path() / "cache").string()});
  EXPECT_THAT(ended.out, HasSubstr("mfu: the share of 100 GFLOP/s a rank, the fastest product that "
                                   "sherd bench --calibrate measured\n"));
  EXPECT_THAT(ended.out, HasSubstr("k tok/s | mfu "));
  EXPECT_THAT(ended.out, HasSubstr(" steps/s, mfu "));
  EXPECT_EQ(events(known, "begin").front().at("peak_operations_per_second"), kPeak);
  EXPECT_EQ(column(known, "loss"), column(plain, "loss"));
  EXPECT_EQ(column(known, "grad_norm"), column(plain, "grad_norm"));
  for (const json& step : read_log(known / "log.jsonl")) {
    const double operations =
        step.at("mfu").get<double>() * step.at("step_seconds").get<double>() * kPeak;
    // What linear layers take for each token, and little beside them.
    const double linear =
        6.0 * 5 * (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 172) * step.at("tokens").get<double>();
    EXPECT_GT(operations, linear);
    EXPECT_LT(operations, 1.3 * linear);
  }
  EXPECT_GT(summary(known).at("mfu"), 0.0);
  EXPECT_TRUE(summary(plain).at("mfu").is_null());
  EXPECT_THAT(expect_code(0, {"watch", known.string()}).out, HasSubstr(" | mfu "));
  EXPECT_THAT(expect_code(0, {"compare", plain.string(), known.string()}).out, HasSubstr("MFU"));
}

}  // namespace
}  // namespace sherd::test
