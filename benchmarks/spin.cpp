// How long threads take that wait for each other: short parallel parts with serial ones between
// them, as in a training step (docs/design/threads.md).
//   GOMP_SPINCOUNT=10000 spin THREADS PARALLEL_MICROSECONDS SERIAL_MICROSECONDS REPEATS

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;
constexpr int kParts = 200;  // of each kind a repeat

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

void divide(int times) {
  volatile double sum = 0;
  for (int i = 0; i < times; ++i) {
    sum = sum + 1.0 / (i + 1);
  }
}

// The fastest of a few: what else runs makes it only slower.
double divisions_per_microsecond() {
  constexpr int kTimes = 100'000;
  double best_s = 1;
  for (int i = 0; i < 20; ++i) {
    const auto begin = Clock::now();
    divide(kTimes);
    best_s = std::min(best_s, seconds_since(begin));
  }
  return kTimes / (best_s * 1e6);
}

double repeat_seconds(int threads, int parallel, int serial) {
  const auto begin = Clock::now();
  for (int part = 0; part < kParts; ++part) {
#pragma omp parallel num_threads(threads)
    divide(parallel);
    divide(serial);
  }
  return seconds_since(begin);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) {
    std::fprintf(stderr, "usage: spin THREADS PARALLEL_US SERIAL_US REPEATS\n");
    return 64;
  }
  const int threads = std::max(1, std::atoi(argv[1]));
  const double speed = divisions_per_microsecond();
  const int parallel = static_cast<int>(std::atoi(argv[2]) * speed);
  const int serial = static_cast<int>(std::atoi(argv[3]) * speed);
  std::vector<double> seconds(static_cast<std::size_t>(std::max(1, std::atoi(argv[4]))));
  for (double& repeat : seconds) {
    repeat = repeat_seconds(threads, parallel, serial);
  }
  std::sort(seconds.begin(), seconds.end());
  std::printf("{\"best_seconds\": %.4f, \"median_seconds\": %.4f}\n", seconds.front(),
              seconds[seconds.size() / 2]);
  return 0;
}
