#include "llm/bench/time_limit.h"

#include <fmt/core.h>

#include "sherd/error.h"

namespace llm::bench {

double estimated_step_seconds(const std::vector<MatmulShape>& products, c10::ScalarType dtype) {
  const std::vector<MatmulShape> probe = {{256, 1024, 1024}};
  const double rate = matmul_operations(probe) / matmul_seconds(probe, dtype);
  return matmul_operations(products) / rate;
}

void check_time_left(double seconds_left, std::optional<double> max_minutes, sherd::World& world) {
  world.all_reduce({&seconds_left, 1}, sherd::ReduceOp::Max);
  const double minutes = seconds_left / 60;
  if (!max_minutes || minutes <= *max_minutes) {
    return;
  }
  throw sherd::Error(sherd::ExitCode::Usage,
                     fmt::format("this bench would take about {:.0f} minutes more, and "
                                 "--max-minutes is {:g}. Give fewer --steps, a shorter --seq, or "
                                 "--max-minutes none.",
                                 minutes, *max_minutes));
}

}  // namespace llm::bench
