#include "launch/spinning.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <fstream>
#include <iterator>
#include <thread>

#include <sched.h>

namespace sherd::launch {
namespace {

// Some tenths of a millisecond: longer than most gaps between the parallel parts of a step.
constexpr const char* kShortSpin = "GOMP_SPINCOUNT=10000";
constexpr std::chrono::milliseconds kBetweenLooks{2};

// What runs changes from one moment to the next: the median of a few.
int running_tasks() {
  std::array<int, 5> seen{};
  for (int& count : seen) {
    std::ifstream file("/proc/loadavg");
    count = running_tasks_in(std::string(std::istreambuf_iterator<char>(file), {}));
    std::this_thread::sleep_for(kBetweenLooks);
  }
  std::sort(seen.begin(), seen.end());
  return seen[seen.size() / 2];
}

int number_in(std::string_view text, int otherwise) {
  int number = otherwise;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), number);
  return result.ec == std::errc{} ? number : otherwise;
}

}  // namespace

int usable_cores() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  return ::sched_getaffinity(0, sizeof cores, &cores) == 0 ? CPU_COUNT(&cores) : 1;
}

int running_tasks_in(std::string_view loadavg) {
  // "0.20 0.18 0.12 3/80 11206" (proc_loadavg(5)): three run, this one among them.
  const std::size_t slash = loadavg.find('/');
  if (slash == std::string_view::npos) {
    return 0;
  }
  const std::size_t space = loadavg.rfind(' ', slash);
  const std::size_t begin = space == std::string_view::npos ? 0 : space + 1;
  return std::max(0, number_in(loadavg.substr(begin, slash - begin), 1) - 1);
}

std::optional<std::string> spin_variable(int threads, int busy, int cores) {
  return threads > 1 && threads + busy > cores ? std::optional<std::string>(kShortSpin)
                                               : std::nullopt;
}

std::optional<std::string> spin_variable_now(int ranks, const EnvLookup& get) {
  if (get("GOMP_SPINCOUNT") || get("OMP_WAIT_POLICY")) {
    return std::nullopt;
  }
  const int cores = usable_cores();
  const int share = std::max(1, cores / ranks);
  const int threads = number_in(get("OMP_NUM_THREADS").value_or(""), share);
  return threads > 1 ? spin_variable(ranks * threads, running_tasks(), cores) : std::nullopt;
}

}  // namespace sherd::launch
