// sherd bandwidth -n N [--max-mib 256] [--at-least GB/S] [--json]

#include "llm/bench/bandwidth.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include "app/launch.h"
#include "app/numbers.h"
#include "app/rank.h"
#include "app/verbs.h"
#include "llm/setup/agreement.h"
#include "sherd/error.h"

namespace app {

namespace {

using llm::bench::Bandwidth;
using llm::bench::CollectiveRate;
using llm::bench::ExchangeRate;
using llm::bench::PairRate;

struct BandwidthFlags {
  std::optional<int> ranks;
  std::int64_t most_mib = 256;
  std::optional<double> at_least_gb_per_second;
  bool json = false;
};

constexpr std::size_t kWidestMatrix = 16;  // ranks that fit beside each other on a line

double in_gb(double bytes) {
  return bytes / 1e9;
}

nlohmann::ordered_json to_json(const Bandwidth& result) {
  nlohmann::ordered_json json = {{"ranks", result.ranks},
                                 {"hosts", result.hosts},
                                 {"transport", result.transport},
                                 {"all_gather_gb_per_second", in_gb(judged_rate(result))},
                                 {"collectives", nlohmann::ordered_json::array()},
                                 {"pairs", nlohmann::ordered_json::array()}};
  for (const CollectiveRate& one : result.collectives) {
    json["collectives"].push_back({{"operation", one.operation},
                                   {"bytes", one.bytes},
                                   {"seconds", one.seconds},
                                   {"bus_gb_per_second", in_gb(one.bus_bytes_per_second)}});
  }
  for (const PairRate& pair : result.pairs) {
    auto sizes = nlohmann::ordered_json::array();
    for (const ExchangeRate& one : pair.sizes) {
      sizes.push_back({{"bytes", one.bytes},
                       {"seconds", one.seconds},
                       {"gb_per_second", in_gb(one.bytes_per_second)}});
    }
    json["pairs"].push_back({{"ranks", {pair.first, pair.second}},
                             {"transport", pair.transport},
                             {"latency_seconds", pair.latency_seconds()},
                             {"gb_per_second", in_gb(pair.bytes_per_second())},
                             {"sizes", sizes}});
  }
  return json;
}

std::string size_text(std::int64_t bytes) {
  const bool small = bytes < (1 << 20);
  return fmt::format("{} {}", (bytes + (small ? 1 << 9 : 1 << 19)) >> (small ? 10 : 20),
                     small ? "KiB" : "MiB");
}

void print_collectives(const Bandwidth& result) {
  std::string line;
  std::int64_t bytes = -1;
  for (const CollectiveRate& one : result.collectives) {
    if (one.bytes != bytes) {
      line.empty() ? say(fmt::format("{:>8} {:>26} {:>26} {:>26}", "tensor", "all-gather",
                                     "reduce-scatter", "all-reduce"))
                   : say(line);
      bytes = one.bytes;
      line = fmt::format("{:>8}", size_text(bytes));
    }
    line += fmt::format(" {:>9.3f} ms {:>8.3f} GB/s", 1e3 * one.seconds,
                        in_gb(one.bus_bytes_per_second));
  }
  say(line);
}

// Between each two that were measured, GB/s; the diagonal is empty.
void print_pairs(const Bandwidth& result) {
  std::map<int, std::map<int, const PairRate*>> rates;
  for (const PairRate& pair : result.pairs) {
    rates[pair.first][pair.second] = rates[pair.second][pair.first] = &pair;
  }
  if (rates.size() > kWidestMatrix) {
    say(fmt::format("{} pairs of {} ranks: --json lists them all", result.pairs.size(),
                    rates.size()));
    return;
  }
  std::string head = fmt::format("{:>8}", "rank");
  for (const auto& [rank, others] : rates) {
    head += fmt::format(" {:>7}", rank);
  }
  say(head);
  for (const auto& [rank, others] : rates) {
    std::string line = fmt::format("{:>8}", rank);
    for (const auto& [other, unused] : rates) {
      const auto found = others.find(other);
      line += found == others.end()
                  ? fmt::format(" {:>7}", "")
                  : fmt::format(" {:>7.2f}", in_gb(found->second->bytes_per_second()));
    }
    say(line);
  }
}

const PairRate* slowest_of(const std::vector<const PairRate*>& pairs) {
  return *std::min_element(pairs.begin(), pairs.end(),
                           [](const PairRate* one, const PairRate* two) {
                             return one->bytes_per_second() < two->bytes_per_second();
                           });
}

// "ranks 0 and 1: 4 KiB in 0.012 ms, 64 KiB at 2.10 GB/s".
std::string rates_text(const PairRate& pair) {
  std::string text = fmt::format("ranks {} and {}: {} in {:.3f} ms", pair.first, pair.second,
                                 size_text(pair.sizes.front().bytes), 1e3 * pair.latency_seconds());
  for (std::size_t size = 1; size < pair.sizes.size(); ++size) {
    text += fmt::format(", {} at {:.2f} GB/s", size_text(pair.sizes[size].bytes),
                        in_gb(pair.sizes[size].bytes_per_second));
  }
  return text;
}

void print(const Bandwidth& result) {
  say(fmt::format("{} ranks on {} host{}, over {}; time per collective, and bus bandwidth",
                  result.ranks, result.hosts, result.hosts == 1 ? "" : "s", result.transport));
  print_collectives(result);
  say("pairs of ranks sending to each other at the same time, GB/s each way");
  print_pairs(result);
  std::map<std::string, std::vector<const PairRate*>> by_transport;
  for (const PairRate& pair : result.pairs) {
    by_transport[pair.transport].push_back(&pair);
  }
  for (const auto& [transport, pairs] : by_transport) {
    say(fmt::format("slowest pair over {}: {}", transport, rates_text(*slowest_of(pairs))));
  }
}

int bandwidth(Rank& rank, const BandwidthFlags& flags) {
  sherd::World world = rank.join();
  const auto settings = [&] {
    return llm::setup::Settings{
        {"--max-mib", std::to_string(flags.most_mib)},
        {"--at-least", std::to_string(flags.at_least_gb_per_second.value_or(0))}};
  };
  llm::setup::require_agreement(world, llm::setup::read_on_all_ranks(world, settings));
  llm::bench::BandwidthOptions options{.most_bytes = flags.most_mib << 20};
  if (rank.is_first()) {
    options.progress = [](const std::string& what) { say("measuring " + what, true); };
  }
  const Bandwidth result = llm::bench::measure_bandwidth(world, options);
  if (rank.is_first()) {
    flags.json ? print_result(to_json(result).dump()) : print(result);
  }
  const double least = flags.at_least_gb_per_second.value_or(0);
  const bool enough = in_gb(judged_rate(result)) >= least;
  if (rank.is_first() && least > 0) {
    say(fmt::format("all-gather: {:.3g} GB/s, {} the {:.3g} asked for", in_gb(judged_rate(result)),
                    enough ? "at least" : "below", least),
        flags.json);
  }
  world.barrier();  // no rank ends before the first has spoken
  return enough ? static_cast<int>(sherd::ExitCode::Done) : 1;
}

}  // namespace

void add_bandwidth(CLI::App& program, Verb& chosen) {
  CLI::App* verb = program.add_subcommand(
      "bandwidth", "Measure the bandwidth of collectives and of each pair of ranks");
  auto flags = std::make_shared<BandwidthFlags>();
  verb->add_option("-n,--ranks", flags->ranks, "ranks to start on this host")
      ->check(within(1, 1024));
  verb->add_option("--max-mib", flags->most_mib, "size of the largest tensor, MiB")
      ->capture_default_str()
      ->check(within(1, 65536));
  verb->add_option("--at-least", flags->at_least_gb_per_second,
                   "least bus bandwidth of a 64 MiB all-gather, GB/s; exit code 1 if it is less")
      ->check(above_zero());
  verb->add_flag("--json", flags->json, "print one line of JSON on standard output");
  verb->footer(
      "Examples: sherd bandwidth -n 2\n          srun sherd bandwidth --at-least 5\nBus bandwidth "
      "is defined as in nccl-tests. Tensors are fp32, from 4 KiB up, each four times the last.");
  verb->callback([flags, &chosen] {
    chosen = [flags] {
      if (const auto code = start_ranks(flags->ranks)) {
        return *code;
      }
      Rank rank(OnSignal::EndProcess);
      return rank.run([&] { return bandwidth(rank, *flags); });
    };
  });
}

}  // namespace app
