#pragma once
// Values that are written with a unit: "10 min", "500 steps".

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace llm::config {

/// "90 s", "10 min", "2 h": a whole number of ms, s, min or h. Nothing for other text, and for more
/// than a thousand hours.
[[nodiscard]] std::optional<std::chrono::milliseconds> duration_of(std::string_view text);
/// In the largest unit of which it is a whole number.
[[nodiscard]] std::string to_text(std::chrono::milliseconds duration);

/// How often something is done.
struct Every {
  enum class Unit { Never, Steps, Epoch, Time };
  Unit unit = Unit::Never;
  std::int64_t count = 0;  ///< of Steps steps, of Time milliseconds

  static constexpr Every steps(std::int64_t count) { return {Unit::Steps, count}; }
  static constexpr Every epoch() { return {Unit::Epoch, 0}; }
  static constexpr Every time(std::chrono::milliseconds time) { return {Unit::Time, time.count()}; }
  bool operator==(const Every&) const = default;
};

/// "never", "epoch", "500 steps", "10 min".
[[nodiscard]] std::optional<Every> every_of(std::string_view text);
[[nodiscard]] std::string to_text(const Every& every);

/// Steps from one to another, both of them included; none by default.
struct StepSpan {
  std::int64_t first = 1;
  std::int64_t last = 0;

  [[nodiscard]] bool has(std::int64_t step) const { return step >= first && step <= last; }
  bool operator==(const StepSpan&) const = default;
};

/// "never", "10", "10-12".
[[nodiscard]] std::optional<StepSpan> step_span_of(std::string_view text);
[[nodiscard]] std::string to_text(const StepSpan& span);

/// How long the learning rate rises.
struct Warmup {
  std::optional<std::int64_t> steps;  ///< if given, `share` is 0
  double share = 0;                   ///< of the steps of the run

  bool operator==(const Warmup&) const = default;
};

/// "100 steps", or a share of the run from 0 to 1: "0.03".
[[nodiscard]] std::optional<Warmup> warmup_of(std::string_view text);
/// The steps of the warm-up: a share of the run is rounded to whole steps.
[[nodiscard]] std::int64_t warmup_steps(const Warmup& warmup, std::int64_t total_steps);

/// An amount of memory.
struct MemorySize {
  std::int64_t bytes = 0;
  bool operator==(const MemorySize&) const = default;
};

/// "512 MiB", "1 GiB": a whole number, from 16 MiB to 1024 GiB.
[[nodiscard]] std::optional<MemorySize> memory_size_of(std::string_view text);
[[nodiscard]] std::string to_text(const MemorySize& size);

/// The number that is all of `text`.
[[nodiscard]] std::optional<std::int64_t> integer_of(std::string_view text);
[[nodiscard]] std::optional<double> number_of(std::string_view text);
/// The shortest TOML float that reads back to the same number. A float has a point or an exponent.
[[nodiscard]] std::string float_text(double value);

}  // namespace llm::config
