#include "llm/runs/comparison.h"

#include <algorithm>
#include <map>
#include <set>

#include <fmt/core.h>

namespace llm::runs {

namespace fs = std::filesystem;

namespace {

Scaling scaling_of(const ComparedRun& first, const ComparedRun& other) {
  const auto batch = [](const ComparedRun& run) { return run.records.config.train.global_batch; };
  if (first.records.ranks == 0 || other.records.ranks == 0 ||
      first.records.ranks == other.records.ranks) {
    return Scaling::None;
  }
  if (batch(first) == batch(other)) {
    return Scaling::Strong;
  }
  return batch(first) * other.records.ranks == batch(other) * first.records.ranks
             ? Scaling::Weak
             : Scaling::Neither;
}

// The last evaluation of each entry of data.eval.
std::map<int, Evaluation> last_by_index(const std::vector<Evaluation>& evaluations) {
  std::map<int, Evaluation> last;
  for (const Evaluation& one : evaluations) {
    last[one.set.index] = one;
  }
  return last;
}

std::string shown(const std::string& digest) {
  constexpr std::size_t kDigits = 12;
  return digest.substr(0, kDigits);
}

void add_differences(const ComparedRun& first, const ComparedRun& other,
                     std::vector<std::string>& lines) {
  const std::string& name = other.records.name;
  const std::string& of = first.records.name;
  for (const config::Difference& difference :
       config::deciding_differences(first.records.config, other.records.config)) {
    const bool is_length =  // the number of steps is compared instead
        difference.key == "train.epochs" || difference.key == "train.max_steps";
    if (!is_length && (difference.key != "train.global_batch" || other.scaling != Scaling::Weak)) {
      lines.push_back(fmt::format("{}: {} = {}, {}: {}", name, difference.key, difference.after, of,
                                  difference.before));
    }
  }
  for (const std::string& change : other.records.changes) {
    lines.push_back(fmt::format("{}: {}", name, change));
  }
  const auto say = [&](const char* what, const auto& its, const auto& the_first) {
    if (its != the_first) {
      lines.push_back(fmt::format("{}: {} {}, {}: {}", name, what, its, of, the_first));
    }
  };
  if (other.scaling != Scaling::Weak) {
    say("steps", other.summary.steps, first.summary.steps);
  }
  say("model.path", other.records.config.model.path, first.records.config.model.path);
  const auto say_known = [&](const std::string& what, const std::string& its,
                             const std::string& the_first) {
    if (!its.empty() && !the_first.empty() && its != the_first) {
      say(what.c_str(), shown(its), shown(the_first));
    }
  };
  say_known("SHA-256 of data.train", other.records.data_sha256, first.records.data_sha256);
  say_known("instructions", other.records.isa, first.records.isa);
  const auto its = last_by_index(other.records.evaluations);
  for (const auto& [index, one] : last_by_index(first.records.evaluations)) {
    const auto found = its.find(index);
    if (found == its.end()) {
      continue;  // the table shows that it is missing
    }
    const std::string key = fmt::format("data.eval[{}]", index);
    const std::size_t before = lines.size();
    say_known("SHA-256 of " + key, found->second.data_sha256, one.data_sha256);
    say(("samples of " + key).c_str(), found->second.samples, one.samples);
    if (lines.size() == before) {  // the same file and number of samples
      say_known("choice of samples of " + key, found->second.set.digest, one.set.digest);
    }
  }
}

void compare_speed(const ComparedRun& first, ComparedRun& run) {
  const double speed = first.summary.train_samples_per_second;
  run.scaling = scaling_of(first, run);
  run.speedup = speed > 0 ? run.summary.train_samples_per_second / speed : 0;
  if (first.records.ranks > 0 && run.records.ranks > 0) {
    run.scaling_efficiency =
        run.speedup * static_cast<double>(first.records.ranks) / run.records.ranks;
  }
}

// Runs in different folders of the same name are named by the end of their paths that differs.
void make_names_unique(const std::vector<fs::path>& folders, std::vector<ComparedRun>& runs) {
  std::vector<fs::path> paths;
  for (const fs::path& folder : folders) {
    paths.push_back(fs::absolute(folder / "").lexically_normal().parent_path());
  }
  std::vector<fs::path> rest = paths;
  std::vector<fs::path> ends(paths.size());
  for (bool unique = false; !unique;) {
    std::map<std::string, std::set<fs::path>> named;
    for (std::size_t i = 0; i < runs.size(); ++i) {
      named[runs[i].records.name].insert(paths[i]);
    }
    unique = true;
    for (std::size_t i = 0; i < runs.size(); ++i) {
      std::string& name = runs[i].records.name;
      if (named[name].size() > 1) {
        unique = false;
        ends[i] = ends[i].empty() ? rest[i].filename() : rest[i].filename() / ends[i];
        rest[i] = rest[i].parent_path();
        name = ends[i].string();
      }
    }
  }
}

}  // namespace

Comparison compare(const std::vector<fs::path>& folders) {
  Comparison comparison;
  for (const fs::path& folder : folders) {
    RunRecords records = read_run(folder);
    RunSummary summary = summary_of(records);
    comparison.runs.push_back({std::move(records), std::move(summary)});
  }
  make_names_unique(folders, comparison.runs);
  for (ComparedRun& run : comparison.runs) {
    compare_speed(comparison.runs.front(), run);
    add_differences(comparison.runs.front(), run, comparison.differences);
  }
  return comparison;
}

}  // namespace llm::runs
