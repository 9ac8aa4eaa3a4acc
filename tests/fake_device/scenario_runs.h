#pragma once
// Scenarios on the host and on devices, and what they come to.

#include <algorithm>
#include <cstdint>
#include <exception>
#include <utility>
#include <vector>

#include <ATen/ops/equal.h>

#include "tests/fake_device/ranks.h"
#include "tests/fake_device/scenarios.h"
#include "tests/fake_device/streams.h"
#include "tests/support/ranks.h"

namespace sherd::fake {

/// By rank.
using Values = std::vector<std::vector<at::Tensor>>;

/// All that is computed with stays where it is computed.
inline Scenario without_offload(Scenario scenario) {
  scenario.options.offload = {};
  return scenario;
}

/// The same, with examples of few rows.
inline Scenario plain(Scenario scenario) {
  scenario = without_offload(std::move(scenario));
  scenario.repeats = 1;
  return scenario;
}

inline Values on_host(const Scenario& scenario) {
  Values values(static_cast<size_t>(scenario.ranks));
  test::run_ranks(scenario.ranks, [&](World world) {
    values[static_cast<size_t>(world.rank())] = train(world, scenario);
  });
  return values;
}

inline Values on_devices(const Scenario& scenario, uint64_t seed,
                         ReduceScatter way = ReduceScatter::RankOrder) {
  set_seed(seed);
  Values values(static_cast<size_t>(scenario.ranks));
  run_ranks_on_devices(
      scenario.ranks,
      [&](const World& world) {
        values[static_cast<size_t>(world.rank())] = train(world, scenario);
      },
      way);
  return values;
}

inline bool are_equal(const Values& a, const Values& b) {
  const auto same = [](const at::Tensor& x, const at::Tensor& y) { return at::equal(x, y); };
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [&](const auto& x, const auto& y) {
    return std::equal(x.begin(), x.end(), y.begin(), y.end(), same);
  });
}

/// By what is found, or by what the engine itself makes of wrong numbers.
inline bool is_missed(const Scenario& scenario) {
  try {
    static_cast<void>(on_devices(scenario, 0));
  } catch (const std::exception&) {
    static_cast<void>(take_faults());
    return true;
  }
  return !take_faults().empty();
}

}  // namespace sherd::fake
