#include "llm/plan/rates.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "files/cache_folder.h"
#include "files/input.h"
#include "files/output.h"
#include "llm/plan/operator_watch.h"
#include "ops/cpu/isa.h"
#include "sherd/error.h"

namespace llm::plan {

namespace {

constexpr int kFormat = 1;

// "AuthenticAMD-25-17": of the same kind, not the same machine, since homes are shared.
std::string processor_kind() {
  std::ifstream info("/proc/cpuinfo");
  std::map<std::string, std::string> first;
  for (std::string line; std::getline(info, line) && !line.empty();) {
    const std::size_t colon = line.find(':');
    if (colon != std::string::npos && colon + 2 <= line.size()) {
      first[line.substr(0, line.find_last_not_of(" \t", colon - 1) + 1)] = line.substr(colon + 2);
    }
  }
  return fmt::format("{}-{}-{}", first["vendor_id"], first["cpu family"], first["model"]);
}

std::filesystem::path path_of(const RateKey& key) {
  const std::filesystem::path folder = sherd::files::cache_folder("rates");
  return folder.empty() ? folder
                        : folder / fmt::format("{}-{}-{}x{}.json", processor_kind(),
                                               sherd::ops::cpu::isa_name(), key.ranks, key.threads);
}

double log_interpolated(const RatePoint& a, const RatePoint& b, double amount) {
  if (a.seconds <= 0 || b.seconds <= 0) {  // too short to be measured
    return a.seconds + (amount - a.amount) / (b.amount - a.amount) * (b.seconds - a.seconds);
  }
  const double share = std::log(amount / a.amount) / std::log(b.amount / a.amount);
  return std::exp(std::log(a.seconds) + share * std::log(b.seconds / a.seconds));
}

bool is_linear(const std::string& kind) {
  return kind.find("linear") != std::string::npos;
}

bool is_attention(const std::string& kind) {
  return kind.starts_with("attention");
}

double over(double amount, double rate) {
  return amount > 0 && rate > 0 ? amount / rate : 0;
}

// Of cuDNN 9.19 on an H200, bfloat16, causal, heads of 128, beside products at 798 TFLOP/s. Source:
// NVIDIA/cudnn-frontend, benchmark/sdpa_benchmark_training/results/h200_919_only_cudnn.
std::vector<AttentionShare> attention_of_gpus() {
  constexpr double kProducts = 798;
  return {{2048, 484 / kProducts, 370 / kProducts},
          {4096, 591 / kProducts, 474 / kProducts},
          {8192, 644 / kProducts, 541 / kProducts}};
}

// Between two lengths in proportion; beyond them as the nearest.
double share_of(const std::vector<AttentionShare>& shares, const OperatorCall& call) {
  const bool is_backward = call.kind.find("_backward") != std::string::npos;
  const auto share = [&](const AttentionShare& at) {
    return is_backward ? at.backward : at.forward;
  };
  const auto above = std::find_if(shares.begin(), shares.end(), [&](const AttentionShare& at) {
    return at.tokens >= call.document_tokens;
  });
  if (above == shares.end()) {
    return shares.empty() ? 1 : share(shares.back());
  }
  if (above == shares.begin()) {
    return share(*above);
  }
  const AttentionShare &a = *(above - 1), &b = *above;
  return share(a) +
         (call.document_tokens - a.tokens) / (b.tokens - a.tokens) * (share(b) - share(a));
}

Rates assumed_rates(const Device& device, const RateKey& key) {
  Rates rates;
  if (device.type != c10::DeviceType::CPU) {
    rates.operations_per_second = device.operations_per_second;
    rates.bytes_per_second = device.bytes_per_second;
    rates.attention = attention_of_gpus();
    rates.source = fmt::format(
        "on paper, the most that may be reached: {:.0f} TFLOP/s in products, {:.1f} TB/s beside "
        "them",
        rates.operations_per_second / 1e12, rates.bytes_per_second / 1e12);
    return rates;
  }
  constexpr double kOperationsOfACore = 40e9, kBytesOfACore = 5e9;
  rates.operations_per_second = kOperationsOfACore * key.threads;
  rates.bytes_per_second = kBytesOfACore * key.threads;
  rates.source = fmt::format(
      "assumed: {:.0f} GFLOP/s a core in products, {:.0f} GB/s beside them; `sherd bench "
      "--calibrate` measures them for {} rank{} of {} thread{}",
      kOperationsOfACore / 1e9, kBytesOfACore / 1e9, key.ranks, key.ranks == 1 ? "" : "s",
      key.threads, key.threads == 1 ? "" : "s");
  return rates;
}

}  // namespace

double Rates::seconds(const OperatorCall& call) const {
  const auto found = kinds.find(call.kind);
  if (found == kinds.end() || found->second.empty()) {
    const double products =
        is_attention(call.kind)
            ? over(call.amount, operations_per_second * share_of(attention, call))
        : is_linear(call.kind) ? over(call.amount, operations_per_second)
                               : 0;
    return products + over(call.moved_bytes, bytes_per_second);
  }
  const double amount = call.amount;
  if (amount <= 0) {
    return 0;
  }
  const std::vector<RatePoint>& points = found->second;
  const auto above = std::find_if(points.begin(), points.end(),
                                  [&](const RatePoint& point) { return point.amount >= amount; });
  if (above == points.begin()) {
    return points.front().seconds * amount / points.front().amount;
  }
  if (above == points.end()) {
    return points.back().seconds * amount / points.back().amount;
  }
  return log_interpolated(*(above - 1), *above, amount);
}

std::optional<Rates> load_rates(const RateKey& key) {
  const std::filesystem::path path = path_of(key);
  std::error_code ignored;
  if (path.empty() || !std::filesystem::exists(path, ignored)) {
    return std::nullopt;
  }
  try {
    const auto file = nlohmann::json::parse(
        sherd::files::read_file(path.string(), sherd::files::kMaxConfigBytes));
    if (file.at("format") != kFormat) {
      return std::nullopt;
    }
    Rates rates;
    rates.source = file.at("source");
    for (const auto& [kind, points] : file.at("kinds").items()) {
      for (const auto& point : points) {
        rates.kinds[kind].push_back({point.at(0), point.at(1)});
      }
    }
    return rates;
  } catch (const nlohmann::json::exception& error) {
    throw sherd::Error(
        sherd::ExitCode::BadData,
        fmt::format("{}: not what sherd bench --calibrate writes: {}. Remove it, and "
                    "calibrate again.",
                    path.string(), error.what()));
  }
}

std::string save_rates(const RateKey& key, const Rates& rates) {
  const std::filesystem::path path = path_of(key);
  if (path.empty()) {
    throw sherd::Error(sherd::ExitCode::CannotWrite,
                       "there is no folder to keep rates in: set XDG_CACHE_HOME or HOME");
  }
  nlohmann::ordered_json kinds = nlohmann::ordered_json::object();
  for (const auto& [kind, points] : rates.kinds) {
    for (const RatePoint& point : points) {
      kinds[kind].push_back({point.amount, point.seconds});
    }
  }
  std::error_code fault;
  std::filesystem::create_directories(path.parent_path(), fault);
  if (fault) {
    throw sherd::Error(sherd::ExitCode::CannotWrite,
                       fmt::format("cannot make the folder {} for rates: {}. Set XDG_CACHE_HOME.",
                                   path.parent_path().string(), fault.message()));
  }
  sherd::files::write_file(
      path.string(),
      nlohmann::ordered_json({{"format", kFormat}, {"source", rates.source}, {"kinds", kinds}})
              .dump() +
          "\n");
  return path.string();
}

Rates rates_of(const Device& device, const RateKey& key) {
  const bool on_cpu = device.type == c10::DeviceType::CPU;
  try {
    std::optional<Rates> kept = on_cpu ? load_rates(key) : std::nullopt;
    return kept ? std::move(*kept) : assumed_rates(device, key);
  } catch (const sherd::Error& error) {  // no run fails for what its plan would like to know
    Rates assumed = assumed_rates(device, key);
    assumed.source += fmt::format("; {}", error.what());
    return assumed;
  }
}

std::optional<Peak> peak_of(const Device& device, const RateKey& key, c10::ScalarType dtype) {
  if (device.type != c10::DeviceType::CPU) {
    return dtype == c10::kFloat || device.peak_operations_per_second == 0
               ? std::nullopt
               : std::optional(Peak{device.peak_operations_per_second,
                                    "what its vendor states of " + device.name});
  }
  Peak peak{0, "the fastest product that sherd bench --calibrate measured"};
  try {
    for (const auto& [kind, points] : load_rates(key).value_or(Rates{}).kinds) {
      for (const RatePoint& point : points) {
        if (is_linear(kind) && kind.ends_with(bits_of(dtype)) && point.seconds > 0) {
          peak.operations_per_second =
              std::max(peak.operations_per_second, point.amount / point.seconds);
        }
      }
    }
  } catch (const sherd::Error&) {  // which rates_of() tells of
  }
  return peak.operations_per_second > 0 ? std::optional(peak) : std::nullopt;
}

Links links_of(const Device& device, int hosts, int ranks_of_host,
               std::optional<double> host_gb_per_second) {
  constexpr double kGb = 1e9, kEthernet = 1.25e9, kMessageSeconds = 50e-6;
  const bool on_cpu = device.type == c10::DeviceType::CPU;
  Links links{.rank_bytes_per_second = device.link_bytes_per_second};
  if (!on_cpu) {  // what NCCL counts for a ring over NVLink and networks, src/graph/tuning.cc
    links.latency_seconds = 14e-6;
    links.hop_seconds = 1.9e-6;
    links.host_hop_seconds = 4e-6;
    links.pinned_bytes_per_second = device.pinned_bytes_per_second;
  }
  if (hosts > 1) {
    links.latency_seconds = on_cpu ? kMessageSeconds : links.latency_seconds;
    links.host_bytes_per_second = host_gb_per_second ? *host_gb_per_second * kGb
                                  : on_cpu           ? kEthernet
                                           : device.network_bytes_per_second * ranks_of_host;
    links.source = fmt::format("{:g} GB/s between hosts{}", links.host_bytes_per_second / kGb,
                               host_gb_per_second ? "" : ", assumed (--link says otherwise)");
  }
  return links;
}

}  // namespace llm::plan
