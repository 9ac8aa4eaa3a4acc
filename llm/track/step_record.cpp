#include "llm/track/step_record.h"

#include <algorithm>
#include <cstdio>

#include <nlohmann/json.hpp>

namespace llm::track {

namespace {

template <class... Args>
std::string print(const char* format, Args... args) {
  char text[160];
  std::snprintf(text, sizeof text, format, args...);
  return text;
}

}  // namespace

double StepRecord::tokens_per_second() const {
  return step_seconds > 0 ? static_cast<double>(tokens) / step_seconds : 0;
}

std::string short_count(double value) {
  if (value >= 1e6) {
    return print("%.1fM", value / 1e6);
  }
  return value >= 1e3 ? print("%.1fk", value / 1e3) : print("%.0f", value);
}

std::string short_bytes(std::int64_t bytes) {
  constexpr double kMib = 1024.0 * 1024.0;
  const double mib = static_cast<double>(bytes) / kMib;
  return mib >= 1024 ? print("%.1f GiB", mib / 1024) : print("%.0f MiB", mib);
}

std::string clock_text(double seconds) {
  const auto total = static_cast<long long>(std::max(0.0, seconds));
  return print("%02lld:%02lld:%02lld", total / 3600, total / 60 % 60, total % 60);
}

std::string step_line(const StepRecord& r, double eta_seconds) {
  std::string line = print("step %lld/%lld | ", static_cast<long long>(r.step),
                           static_cast<long long>(r.total_steps));
  line += r.supervised_tokens > 0 ? print("loss %.4f | gnorm %.3g", r.loss, r.grad_norm)
                                  : std::string("no supervised token: nothing learned");
  line += print(" | lr %.3g | ", r.lr) + short_count(r.tokens_per_second()) + " tok/s | mem " +
          short_bytes(r.peak_rank_bytes) + " | eta " + clock_text(eta_seconds);
  return r.epochs > 0 ? line + print(" | epoch %.2f", r.epochs) : line;
}

std::string step_json(const StepRecord& r) {
  const nlohmann::ordered_json record = {{"step", r.step},
                                         {"loss", r.loss},
                                         {"grad_norm", r.grad_norm},
                                         {"lr", r.lr},
                                         {"tokens", r.tokens},
                                         {"supervised_tokens", r.supervised_tokens},
                                         {"step_seconds", r.step_seconds},
                                         {"tokens_per_second", r.tokens_per_second()},
                                         {"peak_rank_bytes", r.peak_rank_bytes},
                                         {"data_wait_seconds", r.data_wait_seconds},
                                         {"epoch", r.epochs}};
  return record.dump();
}

}  // namespace llm::track
