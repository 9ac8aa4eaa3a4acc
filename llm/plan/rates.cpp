#include "llm/plan/rates.h"

#include <algorithm>
#include <cctype>
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

double over(double amount, double rate) {
  return amount > 0 && rate > 0 ? amount / rate : 0;
}

Rates assumed_rates(const RateKey& key) {
  Rates rates;
  constexpr double kOperationsOfACore = 40e9, kBytesOfACore = 5e9;
  rates.operations_per_second = kOperationsOfACore * key.threads;
  rates.bytes_per_second = kBytesOfACore * key.threads;
  rates.source = fmt::format(
      "assumed: {:.0f} GFLOP/s per core in matrix products, {:.0f} GB/s in other operators; `sherd "
      "bench --calibrate` measures them for {} rank{} of {} thread{}",
      kOperationsOfACore / 1e9, kBytesOfACore / 1e9, key.ranks, key.ranks == 1 ? "" : "s",
      key.threads, key.threads == 1 ? "" : "s");
  return rates;
}

}  // namespace

double Rates::seconds(const OperatorCall& call) const {
  if (gpu) {
    return gpu->seconds(call);
  }
  const auto found = kinds.find(call.kind);
  if (found == kinds.end() || found->second.empty()) {
    const bool multiplies = is_linear(call.kind) || call.kind.starts_with("attention");
    const double products = multiplies ? over(call.amount, operations_per_second) : 0;
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

namespace {

// "NVIDIA-RTX-6000": a name as a file may have it.
std::filesystem::path path_of_gpu(std::string device) {
  std::replace_if(
      device.begin(), device.end(),
      [](unsigned char c) { return std::isalnum(c) == 0 && c != '-'; }, '-');
  const std::filesystem::path folder = sherd::files::cache_folder("rates");
  return folder.empty() ? folder : folder / fmt::format("{}.json", device);
}

// Applies `read` to a file of this format; returns none if the file does not exist.
template <class Read>
auto load_from(const std::filesystem::path& path, const Read& read)
    -> std::optional<decltype(read(nlohmann::json()))> {
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
    return read(file);
  } catch (const nlohmann::json::exception& error) {
    throw sherd::Error(
        sherd::ExitCode::BadData,
        fmt::format("{}: not what sherd bench --calibrate writes: {}. Remove it, and "
                    "calibrate again.",
                    path.string(), error.what()));
  }
}

std::string save_to(const std::filesystem::path& path, nlohmann::ordered_json file) {
  if (path.empty()) {
    throw sherd::Error(sherd::ExitCode::CannotWrite,
                       "there is no folder to keep rates in: set XDG_CACHE_HOME or HOME");
  }
  std::error_code fault;
  std::filesystem::create_directories(path.parent_path(), fault);
  if (fault) {
    throw sherd::Error(sherd::ExitCode::CannotWrite,
                       fmt::format("cannot make the folder {} for rates: {}. Set XDG_CACHE_HOME.",
                                   path.parent_path().string(), fault.message()));
  }
  file["format"] = kFormat;
  sherd::files::write_file(path.string(), file.dump() + "\n");
  return path.string();
}

}  // namespace

std::optional<Rates> load_rates(const RateKey& key) {
  return load_from(path_of(key), [](const nlohmann::json& file) {
    Rates rates;
    rates.source = file.at("source");
    for (const auto& [kind, points] : file.at("kinds").items()) {
      for (const auto& point : points) {
        rates.kinds[kind].push_back({point.at(0), point.at(1)});
      }
    }
    return rates;
  });
}

std::string save_rates(const RateKey& key, const Rates& rates) {
  nlohmann::ordered_json kinds = nlohmann::ordered_json::object();
  for (const auto& [kind, points] : rates.kinds) {
    for (const RatePoint& point : points) {
      kinds[kind].push_back({point.amount, point.seconds});
    }
  }
  return save_to(path_of(key), {{"source", rates.source}, {"kinds", kinds}});
}

std::optional<GpuRates> load_gpu_rates(const std::string& device) {
  return load_from(path_of_gpu(device),
                   [](const nlohmann::json& file) { return gpu_rates_of_json(file); });
}

std::optional<GpuRates> readable_gpu_rates(const std::string& device) {
  try {
    return load_gpu_rates(device);
  } catch (const sherd::Error&) {
    return std::nullopt;
  }
}

std::string save_gpu_rates(const std::string& device, const GpuRates& rates) {
  return save_to(path_of_gpu(device), json_of(rates));
}

namespace {

// Where nothing was kept.
Rates usual_rates(const Device& device, const RateKey& key) {
  return device.type == c10::DeviceType::CPU ? assumed_rates(key)
                                             : rates_of_gpu(shipped_rates_of(device));
}

std::optional<Rates> kept_rates(const Device& device, const RateKey& key) {
  if (device.type == c10::DeviceType::CPU) {
    return load_rates(key);
  }
  auto table = load_gpu_rates(device.name);
  return table ? std::optional(rates_of_gpu(std::move(*table))) : std::nullopt;
}

}  // namespace

Rates rates_of_gpu(GpuRates table) {
  Rates rates;
  rates.source = table.source;
  rates.gpu = std::move(table);
  return rates;
}

Rates rates_of(const Device& device, const RateKey& key) {
  try {
    std::optional<Rates> kept = kept_rates(device, key);
    return kept ? std::move(*kept) : usual_rates(device, key);
  } catch (const sherd::Error& error) {  // no run fails for what its plan would like to know
    Rates usual = usual_rates(device, key);
    usual.source += fmt::format("; {}", error.what());
    return usual;
  }
}

std::optional<Peak> peak_of(const Device& device, const RateKey& key, c10::ScalarType dtype) {
  if (device.type != c10::DeviceType::CPU) {
    return dtype == c10::kFloat || device.peak_operations_per_second == 0
               ? std::nullopt
               : std::optional(Peak{device.peak_operations_per_second,
                                    "the vendor's figure for " + device.name});
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
               std::optional<double> host_gb_per_second, const Rates& rates) {
  constexpr double kGb = 1e9, kEthernet = 1.25e9, kMessageSeconds = 50e-6;
  const bool on_cpu = device.type == c10::DeviceType::CPU;
  Links links{.rank_bytes_per_second = device.link_bytes_per_second};
  if (!on_cpu) {  // what NCCL counts for a ring over NVLink and networks, src/graph/tuning.cc
    links.latency_seconds = 14e-6;
    links.hop_seconds = 1.9e-6;
    links.host_hop_seconds = 4e-6;
    links.pinned_bytes_per_second =
        rates.gpu ? rates.gpu->pinned_bytes_per_second : device.pinned_bytes_per_second;
  }
  if (hosts > 1) {
    links.latency_seconds = on_cpu ? kMessageSeconds : links.latency_seconds;
    links.host_bytes_per_second = host_gb_per_second ? *host_gb_per_second * kGb
                                  : on_cpu           ? kEthernet
                                           : device.network_bytes_per_second * ranks_of_host;
    links.source = fmt::format("{:g} GB/s between hosts{}", links.host_bytes_per_second / kGb,
                               host_gb_per_second ? "" : ", assumed (--link sets it)");
  }
  return links;
}

}  // namespace llm::plan
