#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <set>

#include <fmt/format.h>

#include "llm/runs/comparison.h"

namespace llm::runs {

namespace {

constexpr double kMebibyte = 1024.0 * 1024.0;
constexpr std::size_t kMostNames = 5;
constexpr std::size_t kMostGroups = 3;

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

/// Runs that have the same losses, bit for bit.
struct SameLosses {
  Comparison runs;
  double difference = 0;  ///< from the first run, relative; infinity: other steps or evaluations

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
    while (group < groups.size() && largest_difference(*firsts[group], run.records) != 0) {
      ++group;
    }
    if (group == groups.size()) {
      groups.push_back({{}, largest_difference(comparison.runs.front().records, run.records)});
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
    if (std::isinf(group.difference)) {
      more.push_back(fmt::format(" {} ha{} other steps: see global batch and steps.", group.names(),
                                 group.one() ? "s" : "ve"));
    } else {
      more.push_back(fmt::format(" {} {} from {} by at most {:.2g} %.", group.names(),
                                 group.one() ? "differs" : "agree, bit for bit, and differ",
                                 first.records.name, 100 * group.difference));
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
