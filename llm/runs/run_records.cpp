#include "llm/runs/run_records.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <fstream>
#include <map>
#include <stdexcept>
#include <utility>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include "files/input.h"
#include "files/json.h"
#include "sherd/error.h"

namespace llm::runs {

namespace {

namespace fs = std::filesystem;
namespace files = sherd::files;
using nlohmann::json;

constexpr std::size_t kLongestLine_bytes = std::size_t{1} << 24;

double number_in(const json& line, const char* key) {
  const auto found = line.find(key);
  return found != line.end() && found->is_number() ? found->get<double>() : 0;
}

// Null stands for what was not finite.
double loss_in(const json& line) {
  const auto found = line.find("loss");
  return found != line.end() && found->is_number() ? found->get<double>() : NAN;
}

std::int64_t count_in(const json& line, const char* key) {
  return static_cast<std::int64_t>(number_in(line, key));
}

// A value that is present but not a number was not finite.
std::optional<double> optional_in(const json& line, const char* key) {
  const auto found = line.find(key);
  return found == line.end()  ? std::nullopt
         : found->is_number() ? std::optional(found->get<double>())
                              : std::optional<double>(NAN);
}

std::string text_in(const json& line, const char* key) {
  const auto found = line.find(key);
  return found != line.end() && found->is_string() ? found->get<std::string>() : "";
}

std::map<std::string, double> numbers_in(const json& line, const char* key) {
  std::map<std::string, double> numbers;
  const auto found = line.find(key);
  const json none = json::object();
  for (const auto& [name, value] : (found == line.end() ? none : *found).items()) {
    if (value.is_number()) {
      numbers[name] = value.get<double>();
    }
  }
  return numbers;
}

track::StepRecord step_in(const json& line) {
  // Logs of earlier versions have 0 for the loss of a step that had no supervised token.
  const bool has_loss = optional_in(line, "supervised_tokens") != 0;
  return {.step = count_in(line, "step"),
          .loss = has_loss ? loss_in(line) : NAN,
          .grad_norm = number_in(line, "grad_norm"),
          .lr = number_in(line, "lr"),
          .tokens = count_in(line, "tokens"),
          .supervised_tokens = count_in(line, "supervised_tokens"),
          .samples = count_in(line, "samples"),
          .skipped = line.value("skipped", json()) == json(true),
          .step_seconds = number_in(line, "step_seconds"),
          .unix_seconds = number_in(line, "time"),
          .peak_rank_bytes = count_in(line, "peak_rank_bytes"),
          .data_wait_seconds = number_in(line, "data_wait_seconds"),
          .epochs = number_in(line, "epoch"),
          .mfu = optional_in(line, "mfu"),
          .phase_seconds = numbers_in(line, "phase_seconds"),
          .figures = numbers_in(line, "figures")};
}

Evaluation evaluation_in(const json& line) {
  return {.step = count_in(line, "step"),
          .data = text_in(line, "data"),
          .samples = count_in(line, "samples"),
          .loss = loss_in(line),
          .em = optional_in(line, "em"),
          .f1 = optional_in(line, "f1"),
          .seconds = number_in(line, "seconds"),
          .data_sha256 = text_in(line, "data_sha256"),
          .set = {static_cast<int>(count_in(line, "data_index")), text_in(line, "data_set")},
          .unix_seconds = number_in(line, "time"),
          .figures = numbers_in(line, "figures")};
}

std::optional<track::End> end_in(const json& line) {
  const std::string how = text_in(line, "how");
  return how == "finished"  ? std::optional(track::End::Finished)
         : how == "stopped" ? std::optional(track::End::Stopped)
         : how == "failed"  ? std::optional(track::End::Failed)
                            : std::nullopt;
}

// Evaluations, line by line. Those of earlier versions do not say which entry of data.eval they are
// of: the lines of a step stand in the order of the entries.
class EvaluationReader {
 public:
  Evaluation read(const json& line) {
    Evaluation one = evaluation_in(line);
    place_ = step_ == one.step ? place_ + 1 : 0;
    step_ = one.step;
    if (!line.contains("data_index")) {
      one.set.index = place_;
    }
    one.epochs = one.step == last_step_ ? last_epochs_ : 0;
    return one;
  }
  /// The step before the evaluations that follow.
  void step_was(const track::StepRecord& step) {
    last_step_ = step.step;
    last_epochs_ = step.epochs;
  }
  /// The run begins or resumes: a step may be evaluated again.
  void begin() { step_ = kNone; }

 private:
  static constexpr std::int64_t kNone = -1;
  std::int64_t step_ = kNone;  // of the last line
  std::int64_t last_step_ = kNone;
  double last_epochs_ = 0;
  int place_ = 0;  // of that among its step's
};

// By what later lines say of the same samples.
void name_sets_by_later_lines(std::vector<Evaluation>& evaluations) {
  std::map<int, std::string> named;  // the newest digest, by entry
  for (const Evaluation& one : std::vector(evaluations)) {
    if (std::exchange(named[one.set.index], one.set.digest) != one.set.digest) {
      name_sets(evaluations, one);
    }
  }
}

// A run that began twice at one step says so twice.
void add_changes(const json& line, std::vector<std::string>& changes) {
  for (const json& each : line.value("changes", json::array())) {
    std::string text = fmt::format("{} was {} until step {}", text_in(each, "key"),
                                   text_in(each, "before"), count_in(line, "step"));
    if (std::find(changes.begin(), changes.end(), text) == changes.end()) {
      changes.push_back(std::move(text));
    }
  }
}

using TakeStep = std::function<void(const track::StepRecord&)>;

void add(const json& line, EvaluationReader& evaluations, RunRecords& run, const TakeStep& take) {
  const std::string event = text_in(line, "event");
  run.ended = event == "end" ? end_in(line) : std::nullopt;
  run.why = event == "end" ? text_in(line, "why") : "";
  if (event.empty()) {
    const track::StepRecord step = step_in(line);
    evaluations.step_was(step);
    take(step);
    run.ended_early = false;  // a run that was given more patience goes on
  } else if (event == "evaluation") {
    run.evaluations.push_back(evaluations.read(line));
  } else if (event == "checkpoint") {
    run.checkpoint_seconds += number_in(line, "seconds");
  } else if (event == "early_stop") {
    run.ended_early = true;
  } else if (event == "change") {
    add_changes(line, run.changes);
  } else if (event == "begin") {
    evaluations.begin();
    run.ranks = static_cast<int>(count_in(line, "ranks"));
    run.hosts = static_cast<int>(count_in(line, "hosts"));
    run.isa = text_in(line, "isa");
    run.data_sha256 = text_in(line, "data_sha256");
  }
}

// Reads one line with its end; false at the end of the file and for a line that has none. Of a line
// that is too long for a record only the beginning is kept.
bool next_line(std::istream& file, std::string& line) {
  std::array<char, 1 << 16> part{};
  line.clear();
  while (true) {
    file.getline(part.data(), part.size());
    const bool ends = file.good();  // gcount() counts the end of the line too
    const auto count = static_cast<std::size_t>(file.gcount() - (ends ? 1 : 0));
    line.append(part.data(), std::min(count, kLongestLine_bytes - line.size()));
    if (ends || file.eof() || count == 0) {
      return ends;
    }
    file.clear();  // the line goes on
  }
}

// Of each whole line.
void read_log(const fs::path& log, RunRecords& run, const TakeStep& take) {
  std::ifstream file(log);
  if (!file) {
    throw sherd::Error(sherd::ExitCode::InputMissing, log.string() + ": cannot be opened");
  }
  EvaluationReader evaluations;
  std::string text;
  for (int number = 1; next_line(file, text); ++number) {
    const json line = json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (!line.is_object() || !line.contains("step")) {
      throw sherd::Error(sherd::ExitCode::BadData,
                         fmt::format("{}:{}: not a record of a run: one JSON object with `step`",
                                     log.string(), number));
    }
    add(line, evaluations, run, take);
  }
}

config::RunConfig read_config(const fs::path& file) {
  try {
    return config::from_toml(files::read_file(file.string(), files::kMaxConfigBytes));
  } catch (const std::invalid_argument& fault) {
    throw sherd::Error(sherd::ExitCode::BadData, file.string() + ": " + fault.what());
  }
}

std::optional<RanksMemory> read_memory(const fs::path& plan) {
  if (!fs::is_regular_file(plan)) {
    return std::nullopt;
  }
  const json read = files::read_json_object(plan.string());
  const auto measured = read.find("measured");
  if (measured == read.end() || !measured->is_object()) {
    return std::nullopt;
  }
  RanksMemory memory{count_in(read, "constant_bytes"), {}};
  for (const json& bytes : measured->value("rank_peak_bytes", json::array())) {
    memory.rank_peak_bytes.push_back(bytes.is_number() ? bytes.get<std::int64_t>() : 0);
  }
  return memory.rank_peak_bytes.empty() ? std::nullopt : std::optional(memory);
}

void read_ranks_of_plan(const fs::path& plan, RunRecords& run) {
  if (run.ranks == 0 && fs::is_regular_file(plan)) {
    const json read = files::read_json_object(plan.string());
    run.ranks = static_cast<int>(count_in(read, "ranks"));
    run.hosts = static_cast<int>(count_in(read, "hosts"));
  }
}

}  // namespace

RunRecords read_run(const fs::path& folder, const TakeStep& take) {
  if (!fs::is_regular_file(folder / "config.toml")) {
    throw sherd::Error(sherd::ExitCode::InputMissing,
                       fmt::format("'{}' is not a run: it contains no config.toml. Give the "
                                   "output folder of a run (its train.output).",
                                   folder.string()));
  }
  RunRecords run;
  run.name = (folder / "").parent_path().filename().string();
  run.config = read_config(folder / "config.toml");
  const std::string path = config::jsonl_path(run.config.log);
  const fs::path log = path.empty() ? folder / "log.jsonl" : fs::path(path);
  if (!fs::is_regular_file(log)) {
    throw sherd::Error(
        sherd::ExitCode::InputMissing,
        fmt::format("the run '{}' has no log: {} is {}", folder.string(), log.string(),
                    fs::exists(log) ? "not a file, and cannot be read back" : "not there"));
  }
  read_log(log, run, take);
  name_sets_by_later_lines(run.evaluations);
  read_ranks_of_plan(folder / "plan.json", run);
  run.memory = read_memory(folder / "plan.json");
  return run;
}

RunRecords read_run(const fs::path& folder) {
  std::vector<track::StepRecord> steps;
  RunRecords run = read_run(folder, [&](const track::StepRecord& step) { steps.push_back(step); });
  run.steps = std::move(steps);
  return run;
}

namespace {

// Opening a pipe would wait for its writer.
void for_each_line(const fs::path& log, const std::function<void(const json& line)>& take) {
  std::ifstream file;
  if (fs::is_regular_file(log)) {
    file.open(log);
  }
  for (std::string text; std::getline(file, text);) {
    const json line = json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (line.is_object() && line.contains("step")) {
      take(line);
    }
  }
}

}  // namespace

void for_each_record(const fs::path& log, const std::function<void(const track::StepRecord&)>& step,
                     const std::function<void(const Evaluation&)>& evaluation) {
  EvaluationReader evaluations;
  for_each_line(log, [&](const json& line) {
    const std::string event = text_in(line, "event");
    if (event.empty()) {
      step(step_in(line));
    } else if (event == "evaluation") {
      evaluation(evaluations.read(line));
    } else if (event == "begin") {
      evaluations.begin();
    }
  });
}

std::vector<Evaluation> read_evaluations(const fs::path& log) {
  std::vector<Evaluation> found;
  for_each_record(
      log, [](const track::StepRecord&) {}, [&](const Evaluation& one) { found.push_back(one); });
  return found;
}

void name_sets(std::span<Evaluation> evaluations, const Evaluation& known) {
  for (Evaluation& one : evaluations) {
    if (one.set == EvaluationSet{known.set.index, ""} && one.data_sha256 == known.data_sha256 &&
        one.samples == known.samples) {
      one.set = known.set;
    }
  }
}

bool tells_early_stop(const fs::path& log) {
  bool told = false;
  for_each_line(log, [&](const json& line) {
    const std::string event = text_in(line, "event");
    told = event == "early_stop" || (told && !event.empty());
  });
  return told;
}

}  // namespace llm::runs
