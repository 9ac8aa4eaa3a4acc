#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <set>

#include <fmt/format.h>

#include "llm/runs/comparison.h"

namespace llm::runs {

namespace {

constexpr std::size_t kMostNames = 5;
constexpr std::size_t kMostGroups = 3;

// The losses of one run compared with another's.
struct LossDifference {
  bool has_other_steps = false;
  bool is_not_finite = false;  ///< a loss of one of them
  double largest = 0;          ///< relative to the larger loss; 0: all are the same bits

  [[nodiscard]] bool none() const { return !has_other_steps && !is_not_finite && largest == 0; }
  void add(double one, double other) {
    if (one == other || (std::isnan(one) && std::isnan(other))) {
      return;
    }
    is_not_finite = is_not_finite || !std::isfinite(one) || !std::isfinite(other);
    largest = std::max(largest, std::abs(one - other) / std::max(std::abs(one), std::abs(other)));
  }
};

// Evaluations count if both runs have as many.
LossDifference difference_of(const RunRecords& one, const RunRecords& other) {
  LossDifference difference;
  difference.has_other_steps = one.steps.size() != other.steps.size();
  if (difference.has_other_steps) {
    return difference;
  }
  for (std::size_t i = 0; i < one.steps.size(); ++i) {
    difference.add(one.steps[i].loss, other.steps[i].loss);
  }
  for (std::size_t i = 0;
       i < one.evaluations.size() && one.evaluations.size() == other.evaluations.size(); ++i) {
    difference.add(one.evaluations[i].loss, other.evaluations[i].loss);
  }
  return difference;
}

std::string by_percent(double part) {
  const double percent = 100 * part;
  return percent < 0.001 ? "by less than 0.001 %"
         : percent < 10  ? fmt::format("by at most {:.2g} %", percent)
                         : fmt::format("by at most {:.0f} %", percent);
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

/// Runs that have the same losses, bit for bit.
struct SameLosses {
  Comparison runs;
  LossDifference difference;  ///< from the first run

  [[nodiscard]] std::string names() const {
    std::vector<std::string> names;
    for (const ComparedRun& run : runs.runs) {
      names.push_back(run.records.name);
    }
    return names_of(names);
  }
  [[nodiscard]] bool one() const { return runs.runs.size() == 1; }
};

std::vector<SameLosses> groups_of(const Comparison& comparison) {
  std::vector<SameLosses> groups;
  std::vector<const RunRecords*> firsts;  // of the groups
  for (const ComparedRun& run : comparison.runs) {
    std::size_t group = 0;
    while (group < groups.size() && !difference_of(*firsts[group], run.records).none()) {
      ++group;
    }
    if (group == groups.size()) {
      groups.push_back({{}, difference_of(comparison.runs.front().records, run.records)});
      firsts.push_back(&run.records);
    }
    groups[group].runs.runs.push_back(without_log(run));
  }
  return groups;
}

std::string on_the_first_group(const SameLosses& group, std::size_t runs, std::int64_t steps) {
  if (group.one()) {
    return fmt::format("Losses: no run repeats those of {}, bit for bit.", group.names());
  }
  const std::size_t same = group.runs.runs.size();
  const std::vector<std::string> settings = settings_that_differ(group.runs);
  return fmt::format("Losses: {} have the same losses in each of {} steps, bit for bit{}.",
                     same < runs ? group.names()
                     : same == 2 ? "both runs"
                                 : fmt::format("all {} runs", same),
                     steps,
                     settings.empty()
                         ? ""
                         : fmt::format(", although they differ in {}", fmt::join(settings, ", ")));
}

std::string sentence_on_losses(const Comparison& comparison) {
  const ComparedRun& first = comparison.runs.front();
  if (first.summary.learned_steps == 0) {
    return "";
  }
  const std::vector<SameLosses> groups = groups_of(comparison);
  std::string text = on_the_first_group(groups[0], comparison.runs.size(), first.summary.steps);
  std::vector<std::string> more;
  for (std::size_t i = 1; i < groups.size(); ++i) {
    const SameLosses& group = groups[i];
    if (group.difference.has_other_steps) {
      more.push_back(fmt::format(" {} ha{} other steps: see global batch and steps.", group.names(),
                                 group.one() ? "s" : "ve"));
    } else if (group.difference.is_not_finite) {
      more.push_back(fmt::format(" {} and {} differ in a loss that is not finite.",
                                 first.records.name, group.names()));
    } else {
      more.push_back(fmt::format(" {} {} from {} {}.", group.names(),
                                 group.one() ? "differs" : "agree, bit for bit, and differ",
                                 first.records.name, by_percent(group.difference.largest)));
    }
  }
  if (more.size() > kMostGroups) {
    return text + fmt::format(" The other {} runs have other losses.",
                              comparison.runs.size() - groups[0].runs.runs.size());
  }
  for (const std::string& each : more) {
    text += each;
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
  const std::string least = mib_of(*programs.begin());
  const std::string most = mib_of(*programs.rbegin());
  return fmt::format(
      "Memory: the model's state takes {} MiB per rank in {}.{} The program itself takes {} "
      "MiB per rank in addition.",
      mib_of(static_cast<std::int64_t>(state(first))), first.records.name,
      ranges_by_ranks(comparison, state), least == most ? least : least + " to " + most);
}

std::string sentence_on_speed(const Comparison& comparison) {
  const Value speed = [](const ComparedRun& run) { return run.summary.train_samples_per_second; };
  const ComparedRun& first = comparison.runs.front();
  return speed(first) > 0 ? fmt::format("Speed: {} trains {:.4g} samples/s.{}", first.records.name,
                                        speed(first), ranges_by_ranks(comparison, speed))
                          : "";
}

}  // namespace

std::string mib_of(std::int64_t bytes) {
  constexpr double kMebibyte = 1024.0 * 1024.0;
  constexpr double kWholeFrom = 1000;
  const double mib = static_cast<double>(bytes) / kMebibyte;
  return mib < kWholeFrom ? fmt::format("{:.4g}", mib) : fmt::format("{:.0f}", mib);
}

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
