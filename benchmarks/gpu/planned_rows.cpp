// Steps that were measured on a GPU, beside what is planned for them: `benchmarks/plan --gpu`.
//
//   gpu_planned_rows SOURCE_FOLDER
//
// Needs no GPU. Prints a table in markdown. Planned with the settings of that day; and the time
// once more without the constants that are computed from the row's own figures, and with the
// defaults of now. Exits with 1 where memory differs by more than 5 %, or time by more than 10 %.

#include <cmath>
#include <cstdio>
#include <exception>
#include <string>

#include "benchmarks/gpu/measured_rows.h"

namespace sherd::benchmarks {
namespace {

constexpr double kMemoryBound = 0.05, kTimeBound = 0.10;
constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;

// Whether it is within the bounds.
bool print_row(const MeasuredRow& row, const std::string& source_folder) {
  const llm::plan::GpuRates rates = llm::plan::h200_rates();
  const llm::plan::RunPlan plan = plan_of(row, source_folder, as_that_day, rates);
  const double gib = static_cast<double>(plan.memory.peak_bytes) / kGiB;
  const double seconds = seconds_that_day(row, source_folder, rates);
  const double without =
      seconds_that_day(row, source_folder, llm::plan::h200_rates(row.own_constants));
  const llm::plan::RunPlan now = plan_of(
      row, source_folder, [](llm::config::RunConfig&) {}, rates);
  std::printf("| %s | %.1f | %.1f | %.3f | %.4f | %.4f | %.3f | %.3f | %.1f | %.4f |\n",
              row.name.c_str(), gib, row.peak_gib, gib / row.peak_gib, seconds, row.step_seconds,
              seconds / row.step_seconds, without / row.step_seconds,
              static_cast<double>(now.memory.peak_bytes) / kGiB, now.time.step_seconds);
  return std::abs(gib / row.peak_gib - 1) <= kMemoryBound &&
         std::abs(seconds / row.step_seconds - 1) <= kTimeBound;
}

int run(const std::string& source_folder) {
  std::printf(
      "| step | planned GiB | measured | planned ÷ measured | planned s | measured | planned ÷ "
      "measured | without its own figures | now planned GiB | now planned s |\n"
      "|---|---|---|---|---|---|---|---|---|---|\n");
  std::size_t near = 0;
  for (const MeasuredRow& row : measured_rows()) {
    near += print_row(row, source_folder) ? 1 : 0;
  }
  std::printf("\n%zu of %zu within 5 %% of memory and 10 %% of time\n", near,
              measured_rows().size());
  return near == measured_rows().size() ? 0 : 1;
}

}  // namespace
}  // namespace sherd::benchmarks

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: gpu_planned_rows SOURCE_FOLDER\n");
    return 64;
  }
  try {
    return sherd::benchmarks::run(argv[1]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "gpu_planned_rows: %s\n", error.what());
    return 1;
  }
}
