#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <set>

#include <fmt/format.h>

#include "llm/runs/comparison.h"

namespace llm::runs {

namespace {

constexpr double kRounding = 1e-4;  // of losses, relative
constexpr double kMebibyte = 1024.0 * 1024.0;
constexpr std::size_t kMostNames = 4;

// The losses of all steps, then of all evaluations.
std::vector<double> losses_of(const RunRecords& run) {
  std::vector<double> losses;
  for (const track::StepRecord& step : run.steps) {
    losses.push_back(step.loss);
  }
  for (const Evaluation& one : run.evaluations) {
    losses.push_back(one.loss);
  }
  return losses;
}

// Infinity if the runs have other steps or evaluations; 0 if all losses are the same bits.
double largest_difference(const RunRecords& one, const RunRecords& other) {
  const std::vector<double> its = losses_of(one);
  const std::vector<double> others = losses_of(other);
  if (one.steps.size() != other.steps.size() || its.size() != others.size()) {
    return INFINITY;
  }
  double largest = 0;
  for (std::size_t i = 0; i < its.size(); ++i) {
    if (its[i] == others[i] || (std::isnan(its[i]) && std::isnan(others[i]))) {
      continue;
    }
    const double difference = std::abs(its[i] - others[i]) / std::abs(its[i]);
    largest = std::max(largest, std::isnan(difference) ? INFINITY : difference);
  }
  return largest;
}

std::string names_of(const std::vector<std::string>& names) {
  std::vector<std::string> some(names.begin(), names.begin() + std::min(names.size(), kMostNames));
  if (names.size() > some.size()) {
    some.push_back(fmt::format("{} more", names.size() - some.size()));
  }
  return fmt::format("{}", fmt::join(some, ", "));
}

std::vector<std::string> settings_that_differ(const Comparison& comparison) {
  const Rows rows = settings_table_of(comparison);
  return rows.empty() ? std::vector<std::string>()
                      : std::vector<std::string>(rows[0].begin() + 1, rows[0].end());
}

// All that settings_table_of() reads.
ComparedRun without_log(const ComparedRun& run) {
  ComparedRun its;
  its.records.name = run.records.name;
  its.records.config = run.records.config;
  its.records.ranks = run.records.ranks;
  its.records.hosts = run.records.hosts;
  return its;
}

std::string sentence_on_losses(const Comparison& comparison) {
  const ComparedRun& first = comparison.runs.front();
  if (first.summary.learned_steps == 0) {
    return "";
  }
  Comparison same;  // all losses are the first run's, bit for bit
  std::vector<std::string> close;
  std::vector<std::string> others;
  double rounding = 0;
  for (const ComparedRun& run : comparison.runs) {
    const double difference = largest_difference(first.records, run.records);
    if (difference == 0) {
      same.runs.push_back(without_log(run));
    } else if (difference < kRounding) {
      close.push_back(run.records.name);
      rounding = std::max(rounding, difference);
    } else {
      others.push_back(fmt::format("{} (global batch {}, {} steps)", run.records.name,
                                   run.records.config.train.global_batch, run.summary.steps));
    }
  }
  std::string text;
  if (same.runs.size() == 1) {
    text = fmt::format("Losses: no run repeats those of {}, bit for bit.", first.records.name);
  } else {
    const std::size_t all = comparison.runs.size();
    const std::string number = same.runs.size() < all
                                   ? fmt::format("{} of {}", same.runs.size(), all)
                               : all == 2 ? "both"
                                          : fmt::format("all {}", all);
    const std::vector<std::string> settings = settings_that_differ(same);
    text = fmt::format(
        "Losses: {} runs have the same losses in each of {} steps, bit for bit{}.", number,
        first.summary.steps,
        settings.empty() ? ""
                         : fmt::format(", although they differ in {}", fmt::join(settings, ", ")));
  }
  if (!close.empty()) {
    text += fmt::format(" The same to rounding (at most {:.1g}, relative): {}.", rounding,
                        names_of(close));
  }
  if (!others.empty()) {
    text += fmt::format(" Other losses: {}.", names_of(others));
  }
  return text;
}

using Value = std::function<double(const ComparedRun&)>;  // 0: not known

// "With 2 ranks: 0.74 x (a) to 1.01 x (b); with 4 ranks: 0.64 x (c)." of the first run's value.
std::string ranges_by_ranks(const Comparison& comparison, const Value& value) {
  std::map<int, std::vector<const ComparedRun*>> by_ranks;
  for (std::size_t i = 1; i < comparison.runs.size(); ++i) {
    const ComparedRun& run = comparison.runs[i];
    if (value(run) > 0 && run.summary.ranks > 0) {
      by_ranks[run.summary.ranks].push_back(&run);
    }
  }
  const double of_first = value(comparison.runs.front());
  const auto part = [&](const ComparedRun& run) {
    return fmt::format("{:.2f} x ({})", value(run) / of_first, run.records.name);
  };
  std::string text;
  for (const auto& [ranks, runs] : by_ranks) {
    const auto [least, most] = std::minmax_element(
        runs.begin(), runs.end(),
        [&](const auto* one, const auto* other) { return value(*one) < value(*other); });
    text += fmt::format("{} {} rank{}: {}{}", text.empty() ? " With" : "; with", ranks,
                        ranks == 1 ? "" : "s", part(**least),
                        runs.size() == 1 ? "" : " to " + part(**most));
  }
  return text.empty() ? "" : text + ".";
}

std::string sentence_on_memory(const Comparison& comparison) {
  const Value state = [](const ComparedRun& run) {
    return static_cast<double>(state_bytes(run.summary).value_or(0));
  };
  const ComparedRun& first = comparison.runs.front();
  if (state(first) <= 0) {
    return "";
  }
  std::set<std::int64_t> programs;
  for (const ComparedRun& run : comparison.runs) {
    if (state(run) > 0) {
      programs.insert(run.summary.constant_bytes);
    }
  }
  const auto mib = [](std::int64_t bytes) {
    return fmt::format("{:.4g}", static_cast<double>(bytes) / kMebibyte);
  };
  const std::string least = mib(*programs.begin());
  const std::string most = mib(*programs.rbegin());
  return fmt::format(
      "Memory: the model's state takes {:.4g} MiB per rank in {}.{} The program itself takes {} "
      "MiB per rank in addition.",
      state(first) / kMebibyte, first.records.name, ranges_by_ranks(comparison, state),
      least == most ? least : least + " to " + most);
}

std::string sentence_on_speed(const Comparison& comparison) {
  const Value speed = [](const ComparedRun& run) { return run.summary.train_samples_per_second; };
  const ComparedRun& first = comparison.runs.front();
  return speed(first) > 0 ? fmt::format("Speed: {} trains {:.4g} samples/s.{}", first.records.name,
                                        speed(first), ranges_by_ranks(comparison, speed))
                          : "";
}

}  // namespace

std::optional<std::int64_t> state_bytes(const RunSummary& run) {
  return run.constant_bytes > 0 ? std::optional(run.max_peak_bytes - run.constant_bytes)
                                : std::nullopt;
}

std::vector<std::string> conclusions_of(const Comparison& comparison) {
  if (comparison.runs.size() < 2) {
    return {};
  }
  std::vector<std::string> sentences = {sentence_on_losses(comparison),
                                        sentence_on_memory(comparison),
                                        sentence_on_speed(comparison)};
  std::erase(sentences, "");
  return sentences;
}

}  // namespace llm::runs
