#pragma once
// Two ways to compute the same matrix product, in turns.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <vector>

namespace sherd::benchmarks {

struct Way {
  const char* name;
  std::function<void()> product;
};

/// Prints the rates of both, medians of rounds of about a tenth of a second, and their ratio.
inline void compare(const char* what, double operations, const Way& plain, const Way& ours) {
  constexpr int kRounds = 7;
  const int times = std::max(1, static_cast<int>(1e10 / operations));
  const auto rate = [&](const std::function<void()>& product) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < times; ++i) {
      product();
    }
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    return operations * times / took.count() * 1e-9;
  };
  plain.product();
  ours.product();
  std::vector<double> rates[2];
  for (int round = 0; round < kRounds; ++round) {
    rates[0].push_back(rate(plain.product));
    rates[1].push_back(rate(ours.product));
  }
  for (auto& each : rates) {
    std::sort(each.begin(), each.end());
  }
  const double medians[] = {rates[0][kRounds / 2], rates[1][kRounds / 2]};
  std::printf("%-18s %s %7.1f GFLOP/s, %s %7.1f GFLOP/s: %.2f times\n", what, plain.name,
              medians[0], ours.name, medians[1], medians[1] / medians[0]);
}

}  // namespace sherd::benchmarks
