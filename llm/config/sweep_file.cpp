#include "llm/config/sweep_file.h"

#include <algorithm>
#include <cctype>
#include <set>

#include <fmt/format.h>

#include "llm/config/fields.h"
#include "llm/config/recipe_paths.h"
#include "llm/config/run_config.h"
#include "llm/config/toml_nodes.h"
#include "sherd/error.h"

namespace llm::config {
namespace {

constexpr int kMostRanks = 1024;

std::string joined(const std::vector<std::string>& parts, const char* between) {
  return fmt::format("{}", fmt::join(parts, between));
}

[[noreturn]] void refuse(const std::vector<std::string>& faults) {
  throw sherd::Error(sherd::ExitCode::Usage,
                     faults.size() == 1 ? faults.front()
                                        : fmt::format("{} faults in the sweep:\n  {}",
                                                      faults.size(), joined(faults, "\n  ")));
}

// As a flag takes it; nothing for what no key can hold.
std::optional<std::string> text_of(const toml::node& node) {
  const Raw raw = raw_of(node);
  if (const auto* flag = std::get_if<bool>(&raw)) {
    return *flag ? "true" : "false";
  }
  if (const auto* strings = std::get_if<std::vector<std::string>>(&raw)) {
    return joined(*strings, ",");
  }
  if (const auto* numbers = std::get_if<std::vector<double>>(&raw)) {
    return fmt::format("{}", fmt::join(*numbers, ","));
  }
  return std::holds_alternative<std::monostate>(raw) ? std::nullopt : std::optional(raw_text(raw));
}

class SweepReader {
 public:
  explicit SweepReader(std::string file) : file_(std::move(file)) {}

  Sweep read(const toml::table& root) {
    Sweep sweep;
    for (const auto& [name, node] : root) {
      if (name.str() == "recipe") {
        sweep.recipe = string(name, node);
      } else if (name.str() == "output") {
        sweep.output = string(name, node);
      } else if (name.str() == "run" && node.is_array_of_tables()) {
        for (const toml::node& run : *node.as_array()) {
          sweep.runs.push_back(read_run(*run.as_table()));
        }
      } else {
        fault(name, "unknown key; a sweep has recipe, output and [[run]]");
      }
    }
    require(sweep.recipe, "recipe is missing: the TOML file with the settings that all runs share");
    require(sweep.output, "output is missing: the folder of all runs");
    return sweep;
  }

  [[nodiscard]] const std::vector<std::string>& faults() const { return faults_; }

 private:
  SweepRun read_run(const toml::table& table) {
    SweepRun run;
    for (const auto& [name, node] : table) {
      if (name.str() == "name") {
        run.name = string(name, node);
      } else if (name.str() == "ranks") {
        run.ranks = number(name, node);
      } else if (name.str() == "hosts") {
        run.hosts = number(name, node);
      } else if (name.str() == "set" && node.is_table()) {
        read_set("", *node.as_table(), run);
      } else {
        fault(name, "unknown key; a run has name, ranks, hosts and set = { key = value }");
      }
    }
    check_name(table, run.name);
    if (run.ranks % run.hosts != 0) {
      faults_.push_back(fmt::format(
          "{}:{}: hosts: {} not divide over {} hosts", file_, table.source().begin.line,
          run.ranks == 1 ? "1 rank does" : fmt::format("{} ranks do", run.ranks), run.hosts));
    }
    return run;
  }

  // set = { optim.lr = 1e-5 } and { "optim.lr" = 1e-5 } are the same.
  void read_set(const std::string& prefix, const toml::table& table, SweepRun& run) {
    for (const auto& [name, node] : table) {
      const std::string key = prefix + std::string(name.str());
      if (node.is_table()) {
        read_set(key + ".", *node.as_table(), run);
      } else if (const auto text = text_of(node)) {
        run.set.emplace_back(key, *text);
      } else {
        fault(name, key + " is given as a word, a number, true, false, or a list of those");
      }
    }
  }

  void check_name(const toml::table& table, const std::string& name) {
    const auto line = table.source().begin.line;
    if (name.empty() || name.front() == '.' || name.find('/') != std::string::npos) {
      faults_.push_back(
          fmt::format("{}:{}: name: each [[run]] needs a name for its folder: '{}' cannot be one",
                      file_, line, name));
    } else if (!names_.insert(name).second) {
      faults_.push_back(fmt::format("{}:{}: name: two runs are called '{}'", file_, line, name));
    }
  }

  std::string string(const toml::key& name, const toml::node& node) {
    const auto text = node.value<std::string>();
    if (!node.is_string() || text->empty()) {
      fault(name, "must be a string");
      return "";
    }
    return *text;
  }

  int number(const toml::key& name, const toml::node& node) {
    const auto given = node.is_integer() ? *node.value<std::int64_t>() : 0;
    if (given < 1 || given > kMostRanks) {
      fault(name, fmt::format("must be a number from 1 to {}", kMostRanks));
      return 1;
    }
    return static_cast<int>(given);
  }

  void fault(const toml::key& name, const std::string& what) {
    faults_.push_back(
        fmt::format("{}:{}: {}: {}", file_, name.source().begin.line, name.str(), what));
  }

  void require(const std::string& value, const char* what) {
    if (value.empty() && faults_.empty()) {
      faults_.push_back(file_ + ": " + what);
    }
  }

  std::string file_;
  std::set<std::string> names_;
  std::vector<std::string> faults_;
};

toml::table parsed(const std::filesystem::path& file) {
  std::vector<std::string> faults;
  const auto text = toml_contents(file, faults);
  if (!text) {
    refuse(faults);
  }
  try {
    return toml::parse(*text, file.string());
  } catch (const toml::parse_error& error) {
    const toml::source_position& place = error.source().begin;
    refuse({fmt::format("{}:{}:{}: not valid TOML: {}", file.string(), place.line, place.column,
                        std::string_view(error.description()))});
  }
}

// Before the first run begins, all of them are known to be sound.
void check_runs(const Sweep& sweep) {
  std::vector<std::string> faults;
  std::set<std::string> names;
  for (const SweepRun& run : sweep.runs) {
    if (!names.insert(run.name).second) {
      faults.push_back(fmt::format("two runs are called '{}'", run.name));
    }
    try {
      const RunConfig config = config_of(sweep, run);
      for (const Sink& sink : config.log.sink) {
        const bool of_one = sink.kind == SinkKind::Jsonl || sink.kind == SinkKind::TensorBoard;
        if (of_one && !sink.path.empty()) {
          faults.push_back(
              fmt::format("run '{}': the path {} of a log.sink would be shared by all runs: leave "
                          "it out, and each run logs into its own folder",
                          run.name, sink.path));
        }
      }
    } catch (const sherd::Error& error) {
      faults.push_back(fmt::format("run '{}': {}", run.name, error.what()));
    }
  }
  if (!faults.empty()) {
    refuse(faults);
  }
}

// A key with the values that it takes one after the other.
struct Axis {
  std::string key;
  std::vector<std::string> values;
};

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts(1);
  for (const char c : text) {
    if (c == ',') {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

// Of "--optim.betas 0.9,0.95" the whole value is one.
bool takes_a_list(const std::string& key, const std::string& value) {
  RunConfig tried;
  const Found found = find(tried, key);
  return found.field && found.field->value() != nullptr &&
         (found.field->value()->kind.starts_with("two numbers") ||
          found.field->value()->kind.starts_with("a list")) &&
         found.field->value()->set(FlagText{value});
}

// --key value and --key=value.
std::vector<std::pair<std::string, std::string>> pairs_of(const std::vector<std::string>& flags) {
  std::vector<std::pair<std::string, std::string>> pairs;
  for (std::size_t i = 0; i < flags.size(); ++i) {
    const std::size_t equals = flags[i].find('=');
    const std::string key = flags[i].substr(0, equals);
    const bool in_one = equals != std::string::npos;
    if (!key.starts_with("--") || (!in_one && i + 1 == flags.size())) {
      refuse({fmt::format("'{}': a setting is given as --section.key value", flags[i])});
    }
    const std::string value = in_one ? flags[i].substr(equals + 1) : flags[++i];
    pairs.emplace_back(key.substr(2), value);
  }
  return pairs;
}

std::vector<Axis> axes_of(const std::vector<std::string>& flags) {
  std::vector<Axis> axes;
  for (const auto& [key, value] : pairs_of(flags)) {
    axes.push_back({key, takes_a_list(key, value) ? std::vector{value} : split(value)});
  }
  return axes;
}

// For each of the runs.
void add_settings(const std::vector<std::string>& settings, Sweep& sweep) {
  for (const auto& [key, value] : pairs_of(settings)) {
    if (key == "train.output") {
      sweep.output = value;
      continue;
    }
    for (SweepRun& run : sweep.runs) {
      run.set.emplace_back(key, value);
    }
  }
}

// A word explains itself; a number needs its key.
std::string name_of(const std::string& key, const std::string& value) {
  const bool word = !value.empty() && std::isalpha(static_cast<unsigned char>(value[0])) != 0 &&
                    value != "true" && value != "false";
  return word ? value : key.substr(key.rfind('.') + 1) + "=" + value;
}

// Every way to take one value of each axis; the last one changes first.
std::vector<SweepRun> combinations(const std::vector<Axis>& axes, const std::vector<int>& ranks) {
  std::vector<SweepRun> runs(1);
  for (const Axis& axis : axes) {
    std::vector<SweepRun> more;
    for (const SweepRun& run : runs) {
      for (const std::string& value : axis.values) {
        SweepRun next = run;
        next.set.emplace_back(axis.key, value);
        if (axis.values.size() > 1) {
          next.name += (next.name.empty() ? "" : "-") + name_of(axis.key, value);
        }
        more.push_back(std::move(next));
      }
    }
    runs = std::move(more);
  }
  std::vector<SweepRun> all;
  for (const SweepRun& run : runs) {
    for (const int number : ranks) {
      SweepRun next = run;
      next.ranks = number;
      if (ranks.size() > 1 || next.name.empty()) {
        next.name += fmt::format("{}n{}", next.name.empty() ? "" : "-", number);
      }
      std::replace(next.name.begin(), next.name.end(), '/', '_');
      all.push_back(std::move(next));
    }
  }
  return all;
}

}  // namespace

bool is_sweep_file(const std::filesystem::path& file) {
  std::vector<std::string> ignored;
  const auto text = toml_contents(file, ignored);
  if (!text) {
    return false;
  }
  try {
    return toml::parse(*text).contains("run");
  } catch (const toml::parse_error&) {
    return false;
  }
}

Sweep read_sweep(const std::filesystem::path& file, const std::vector<std::string>& settings) {
  SweepReader reader(file.string());
  Sweep sweep = reader.read(parsed(file));
  if (!reader.faults().empty()) {
    refuse(reader.faults());
  }
  sweep.recipe = path_in_recipe(sweep.recipe, file);
  add_settings(settings, sweep);
  check_runs(sweep);
  return sweep;
}

Sweep sweep_of(const std::filesystem::path& recipe, const std::vector<std::string>& flags,
               const std::vector<int>& ranks) {
  Sweep sweep{recipe.string(), "runs/" + recipe.stem().string() + "-sweep", {}};
  std::vector<Axis> axes = axes_of(flags);
  const auto output = std::find_if(axes.begin(), axes.end(),
                                   [](const Axis& axis) { return axis.key == "train.output"; });
  if (output != axes.end()) {
    sweep.output = joined(output->values, ",");
    axes.erase(output);
  }
  sweep.runs = combinations(axes, ranks);
  check_runs(sweep);
  return sweep;
}

RunConfig config_of(const Sweep& sweep, const SweepRun& run) {
  return load(sweep.recipe, flags_of(sweep, run));
}

std::vector<std::string> flags_of(const Sweep& sweep, const SweepRun& run) {
  std::vector<std::string> flags = {"--train.output",
                                    (std::filesystem::path(sweep.output) / run.name).string()};
  for (const auto& [key, value] : run.set) {
    flags.push_back("--" + key);
    flags.push_back(value);
  }
  return flags;
}

}  // namespace llm::config
