#include "llm/track/step_record.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <utility>
#include <vector>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

namespace llm::track {

double StepRecord::tokens_per_second() const {
  return step_seconds > 0 ? static_cast<double>(tokens) / step_seconds : 0;
}

double StepRecord::samples_per_second() const {
  return step_seconds > 0 ? static_cast<double>(samples) / step_seconds : 0;
}

double unix_seconds_now() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  constexpr double kMilliseconds = 1e3;
  return static_cast<double>(std::chrono::duration_cast<std::chrono::milliseconds>(now).count()) /
         kMilliseconds;
}

std::string short_count(double value) {
  if (value >= 1e9) {
    return fmt::format("{:.2f}B", value / 1e9);
  }
  if (value >= 1e6) {
    return fmt::format("{:.1f}M", value / 1e6);
  }
  return value >= 1e3 ? fmt::format("{:.1f}k", value / 1e3) : fmt::format("{:.0f}", value);
}

std::string percent(double share) {
  return fmt::format("{:.1f}%", 100 * share);
}

std::string short_number(double value) {
  constexpr double kWholeFrom = 999.5;  // three digits of it would need an exponent
  return value >= kWholeFrom ? fmt::format("{:.0f}", value) : fmt::format("{:.3g}", value);
}

std::string short_bytes(std::int64_t bytes) {
  constexpr double kMib = 1024.0 * 1024.0;
  const double mib = static_cast<double>(bytes) / kMib;
  return mib >= 1024 ? fmt::format("{:.1f} GiB", mib / 1024) : fmt::format("{:.0f} MiB", mib);
}

std::string clock_text(double seconds) {
  const auto total = static_cast<long long>(std::max(0.0, seconds));
  return fmt::format("{:02}:{:02}:{:02}", total / 3600, total / 60 % 60, total % 60);
}

namespace {

// Of preference pairs; empty for other steps.
std::string preference_text(const StepRecord& r) {
  const auto margin = r.figures.find("rewards/margins");
  const auto accuracy = r.figures.find("rewards/accuracies");
  return margin == r.figures.end() || accuracy == r.figures.end()
             ? ""
             : fmt::format("margin {:.3g} | acc {}", margin->second, percent(accuracy->second));
}

}  // namespace

std::string step_line(const StepRecord& r, double eta_seconds, int columns) {
  const std::string norm =
      r.supervised_tokens > 0 ? fmt::format("gnorm {:.3g}", r.grad_norm) : std::string();
  // Each part with the order in which it is left out; 0: never.
  const std::vector<std::pair<int, std::string>> parts = {
      {0, fmt::format("step {}/{}", r.step, r.total_steps)},
      {0, r.supervised_tokens > 0 ? fmt::format("loss {:.4f}", r.loss)
                                  : "no supervised token: nothing learned"},
      {0, preference_text(r)},
      {4, norm},
      {0, fmt::format("lr {:.3g}", r.lr)},
      {5, short_count(r.tokens_per_second()) + " tok/s"},
      {2, r.mfu ? "mfu " + percent(*r.mfu) : ""},
      {3, "mem " + short_bytes(r.peak_rank_bytes)},
      {0, "eta " + clock_text(eta_seconds)},
      {1, r.epochs > 0 ? fmt::format("epoch {:.2f}", r.epochs) : ""}};
  constexpr int kLastLeftOut = 5;
  std::string line;
  for (int left_out = 0; left_out <= kLastLeftOut; ++left_out) {
    line.clear();
    for (const auto& [order, part] : parts) {
      if (!part.empty() && (order == 0 || order > left_out)) {
        line += (line.empty() ? "" : " | ") + part;
      }
    }
    if (columns == 0 || std::ssize(line) <= columns) {
      break;
    }
  }
  return line;
}

std::string next_step_text(const StepRecord& r, double eta_seconds, bool is_told) {
  if (r.step >= r.total_steps) {
    return fmt::format("after step {}/{}", r.step, r.total_steps);
  }
  const std::string next = fmt::format("computing step {}/{}", r.step + 1, r.total_steps);
  return is_told ? next
                 : fmt::format("{} | loss {:.4f} | eta {}", next, r.loss, clock_text(eta_seconds));
}

std::string step_json(const StepRecord& r) {
  nlohmann::ordered_json record = {{"step", r.step},
                                   {"loss", r.loss},
                                   {"grad_norm", r.grad_norm},
                                   {"lr", r.lr},
                                   {"tokens", r.tokens},
                                   {"supervised_tokens", r.supervised_tokens},
                                   {"step_seconds", r.step_seconds},
                                   {"tokens_per_second", r.tokens_per_second()},
                                   {"peak_rank_bytes", r.peak_rank_bytes},
                                   {"data_wait_seconds", r.data_wait_seconds},
                                   {"epoch", r.epochs},
                                   {"samples", r.samples},
                                   {"samples_per_second", r.samples_per_second()},
                                   {"time", r.unix_seconds}};
  if (r.skipped) {
    record["skipped"] = true;
  }
  if (r.mfu) {
    record["mfu"] = *r.mfu;
  }
  if (!r.phase_seconds.empty()) {
    record["phase_seconds"] = r.phase_seconds;
  }
  if (!r.figures.empty()) {
    record["figures"] = r.figures;
  }
  return record.dump();
}

}  // namespace llm::track
