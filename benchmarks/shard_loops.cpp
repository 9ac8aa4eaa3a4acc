// How fast Sherd's loops over flat shards are, in bytes read and written a second: on one core, and
// on two at once as two ranks run them. A plain copy beside them says what memory gives.
//
//   build/release/bin/shard_loops [--rounds N] [--json]
//
// Arrays of 256 MiB (fp32) on huge pages, far larger than the caches; each process on a core of its
// own. A copy is counted as one read and one write, though a write that does not pass the caches by
// reads the line first.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <vector>

#include <nlohmann/json.hpp>
#include <sched.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "benchmarks/program.h"
#include "src/kernels/kernels.h"

namespace sherd::benchmarks {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kNumel = int64_t{1} << 26;
constexpr int64_t kPart = int64_t{1} << 19;  // what the engine gives a thread at a time
constexpr size_t kHugePage = size_t{2} << 20;

template <class T>
T* filled(T value) {
  const size_t bytes = static_cast<size_t>(kNumel) * sizeof(T);
  void* data = std::aligned_alloc(kHugePage, bytes);
  if (data == nullptr) {
    std::perror("aligned_alloc");
    std::exit(EXIT_FAILURE);
  }
  madvise(data, bytes, MADV_HUGEPAGE);
  std::fill_n(static_cast<T*>(data), kNumel, value);
  return static_cast<T*>(data);
}

/// The arrays of one process; they live until it ends.
struct Arrays {
  float* master = filled(0.1F);
  float* exp_avg = filled(0.01F);
  float* exp_avg_sq = filled(0.02F);
  float* gradient = filled(0.3F);
  uint16_t* travelling = filled<uint16_t>(0x3f80);
  uint16_t* other = filled<uint16_t>(0x3f81);
};

struct Loop {
  const char* name;
  double bytes_an_element;
  std::function<void(const Arrays&, int64_t begin)> part;
};

const std::vector<Loop>& loops() {
  static const std::vector<Loop> all = {
      {"copy", 8,
       [](const Arrays& a, int64_t begin) {
         std::memcpy(a.exp_avg + begin, a.exp_avg_sq + begin, kPart * sizeof(float));
       }},
      {"sum of two ranks' bf16 gradients, with its squares", 8,
       [](const Arrays& a, int64_t begin) {
         const std::vector<const uint16_t*> sources = {a.travelling + begin, a.other + begin};
         kernels::sum_in_rank_order(a.gradient + begin, false, 0.5F, sources, kPart);
       }},
      {"AdamW, master and moments in fp32, bf16 emitted", 30,
       [](const Arrays& a, int64_t begin) {
         const kernels::AdamWStep step{.keep = 0.999F,
                                       .step_size = 1e-4F,
                                       .one_minus_beta1 = 0.1F,
                                       .beta2 = 0.999F,
                                       .one_minus_beta2 = 0.001F,
                                       .eps = 1e-8F};
         const kernels::AdamWShards shards{.master = a.master,
                                           .travelling = a.travelling,
                                           .exp_avg = a.exp_avg,
                                           .exp_avg_sq = a.exp_avg_sq,
                                           .gradient = a.gradient};
         kernels::adamw(shards.from(begin), kPart, step);
       }},
  };
  return all;
}

/// GB/s of each loop, the median round.
std::vector<double> measure(int core, int rounds) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  CPU_SET(core, &cores);
  if (sched_setaffinity(0, sizeof cores, &cores) != 0) {
    std::perror("sched_setaffinity");
    std::exit(EXIT_FAILURE);
  }
  const Arrays arrays;
  std::vector<double> rates;
  for (const Loop& loop : loops()) {
    std::vector<double> seconds;
    for (int round = -1; round < rounds; ++round) {
      const auto start = Clock::now();
      for (int64_t begin = 0; begin < kNumel; begin += kPart) {
        loop.part(arrays, begin);
      }
      if (round >= 0) {
        seconds.push_back(std::chrono::duration<double>(Clock::now() - start).count());
      }
    }
    std::nth_element(seconds.begin(), seconds.begin() + rounds / 2, seconds.end());
    rates.push_back(loop.bytes_an_element * static_cast<double>(kNumel) /
                    seconds[static_cast<size_t>(rounds / 2)] * 1e-9);
  }
  return rates;
}

/// While a second process does the same on another core.
std::vector<double> measure_beside_another(int rounds) {
  const pid_t other = fork();
  if (other == 0) {
    static_cast<void>(measure(1, rounds));
    _exit(EXIT_SUCCESS);
  }
  const std::vector<double> rates = measure(0, rounds);
  int status = -1;
  waitpid(other, &status, 0);
  if (status != 0) {
    std::fprintf(stderr, "shard_loops: the process on the other core failed\n");
    std::exit(EXIT_FAILURE);
  }
  return rates;
}

int run(const Flags& flags) {
  const std::vector<double> beside = measure_beside_another(flags.rounds);
  const std::vector<double> alone = measure(0, flags.rounds);
  nlohmann::json report = {{"processor", processor()}, {"results", nlohmann::json::array()}};
  for (size_t i = 0; i < loops().size(); ++i) {
    report["results"].push_back({{"loop", loops()[i].name},
                                 {"alone_gb_a_second", alone[i]},
                                 {"of_two_gb_a_second", beside[i]}});
  }
  if (flags.json) {
    std::printf("%s\n", report.dump().c_str());
    return EXIT_SUCCESS;
  }
  std::printf("%s, GB/s of a core, median of %d rounds\n\n", processor().c_str(), flags.rounds);
  std::printf("| loop | one core alone | each of two |\n|---|---|---|\n");
  for (size_t i = 0; i < loops().size(); ++i) {
    std::printf("| %s | %.1f | %.1f |\n", loops()[i].name, alone[i], beside[i]);
  }
  return EXIT_SUCCESS;
}

}  // namespace
}  // namespace sherd::benchmarks

int main(int argc, char** argv) {
  return sherd::benchmarks::run(sherd::benchmarks::flags_of(argc, argv, 15));
}
