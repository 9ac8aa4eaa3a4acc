#include "llm/config/measures.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <utility>

#include <fmt/core.h>

namespace llm::config {
namespace {

using std::chrono::milliseconds;

constexpr std::int64_t kMostSteps = 1'000'000'000'000;
constexpr std::int64_t kMebibyte = std::int64_t{1} << 20;
constexpr std::int64_t kGibibyte = std::int64_t{1} << 30;
constexpr milliseconds kLongest = std::chrono::hours(1000);

struct TimeUnit {
  std::string_view name;
  milliseconds length;
};
constexpr std::array<TimeUnit, 4> kTimeUnits = {{{"h", std::chrono::hours(1)},
                                                 {"min", std::chrono::minutes(1)},
                                                 {"s", std::chrono::seconds(1)},
                                                 {"ms", milliseconds(1)}}};

/// "10 min" and "10min" as 10 and "min".
struct Measure {
  std::int64_t count = 0;
  std::string_view unit;
};

std::optional<Measure> measure_of(std::string_view text) {
  const std::size_t digits = std::min(text.find_first_not_of("0123456789"), text.size());
  const auto count = integer_of(text.substr(0, digits));
  if (!count) {
    return std::nullopt;
  }
  std::string_view unit = text.substr(digits);
  if (unit.starts_with(' ')) {
    unit.remove_prefix(1);
  }
  return Measure{*count, unit};
}

std::optional<std::int64_t> steps_of(const Measure& measure, std::int64_t least) {
  const bool steps = measure.unit == "steps" || (measure.unit == "step" && measure.count == 1);
  const bool fits = measure.count >= least && measure.count <= kMostSteps;
  return steps && fits ? std::optional(measure.count) : std::nullopt;
}

std::string steps_text(std::int64_t count) {
  return fmt::format("{} {}", count, count == 1 ? "step" : "steps");
}

template <class Number>
std::optional<Number> parse(std::string_view text) {
  Number number{};
  const char* end = text.data() + text.size();
  const auto [stop, fault] = std::from_chars(text.data(), end, number);
  return !text.empty() && fault == std::errc{} && stop == end ? std::optional(number)
                                                              : std::nullopt;
}

}  // namespace

std::optional<std::int64_t> integer_of(std::string_view text) {
  return parse<std::int64_t>(text);
}

std::optional<double> number_of(std::string_view text) {
  return parse<double>(text);
}

std::string float_text(double value) {
  std::array<char, 32> buffer{};
  char* end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value).ptr;
  const std::string text(buffer.data(), end);
  return text.find_first_of(".e") == std::string::npos ? text + ".0" : text;
}

std::optional<milliseconds> duration_of(std::string_view text) {
  const auto measure = measure_of(text);
  for (const TimeUnit& unit : kTimeUnits) {
    if (measure && measure->unit == unit.name && measure->count <= kLongest / unit.length) {
      return measure->count * unit.length;
    }
  }
  return std::nullopt;
}

std::int64_t warmup_steps(const Warmup& warmup, std::int64_t total_steps) {
  return warmup.steps ? *warmup.steps
                      : std::llround(warmup.share * static_cast<double>(total_steps));
}

std::optional<MemorySize> memory_size_of(std::string_view text) {
  constexpr std::int64_t kLeast = 16 * kMebibyte;
  constexpr std::int64_t kMost = 1024 * kGibibyte;
  const auto measure = measure_of(text);
  const std::int64_t unit = !measure                 ? 0
                            : measure->unit == "MiB" ? kMebibyte
                            : measure->unit == "GiB" ? kGibibyte
                                                     : 0;
  const bool fits = unit > 0 && measure->count <= kMost / unit && measure->count * unit >= kLeast;
  return fits ? std::optional(MemorySize{measure->count * unit}) : std::nullopt;
}

std::string to_text(const MemorySize& size) {
  return size.bytes % kGibibyte == 0 ? fmt::format("{} GiB", size.bytes / kGibibyte)
                                     : fmt::format("{} MiB", size.bytes / kMebibyte);
}

std::string to_text(milliseconds duration) {
  std::size_t unit = 0;
  while (duration % kTimeUnits[unit].length != milliseconds::zero()) {
    ++unit;
  }
  return fmt::format("{} {}", duration / kTimeUnits[unit].length, kTimeUnits[unit].name);
}

std::optional<Every> every_of(std::string_view text) {
  if (text == "never") {
    return Every{};
  }
  if (text == "epoch") {
    return Every::epoch();
  }
  const auto measure = measure_of(text);
  if (const auto steps = measure ? steps_of(*measure, 1) : std::nullopt) {
    return Every::steps(*steps);
  }
  const auto time = duration_of(text);
  return time && time->count() > 0 ? std::optional(Every::time(*time)) : std::nullopt;
}

std::string to_text(const Every& every) {
  switch (every.unit) {
    case Every::Unit::Never:
      return "never";
    case Every::Unit::Steps:
      return steps_text(every.count);
    case Every::Unit::Epoch:
      return "epoch";
    case Every::Unit::Time:
      return to_text(milliseconds(every.count));
  }
  return "never";
}

std::optional<StepSpan> step_span_of(std::string_view text) {
  if (text == "never") {
    return StepSpan{};
  }
  const std::size_t dash = text.find('-');
  const auto first = integer_of(text.substr(0, dash));
  const auto last = dash == std::string_view::npos ? first : integer_of(text.substr(dash + 1));
  return first && last && *first >= 1 && *last >= *first ? std::optional(StepSpan{*first, *last})
                                                         : std::nullopt;
}

std::string to_text(const StepSpan& span) {
  if (span.last < span.first) {
    return "never";
  }
  return span.first == span.last ? fmt::format("{}", span.first)
                                 : fmt::format("{}-{}", span.first, span.last);
}

std::optional<Warmup> warmup_of(std::string_view text) {
  const auto measure = measure_of(text);
  if (const auto steps = measure ? steps_of(*measure, 0) : std::nullopt) {
    return Warmup{*steps, 0};
  }
  const auto share = number_of(text);
  return share && *share >= 0 && *share <= 1 ? std::optional(Warmup{std::nullopt, *share})
                                             : std::nullopt;
}

}  // namespace llm::config
