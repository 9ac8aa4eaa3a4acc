#include "llm/runs/run_records.h"

#include <cmath>
#include <fstream>
#include <stdexcept>

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

constexpr std::uint64_t kLargestLog_bytes = std::uint64_t{1} << 30;

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

// What is there and not a number was not finite.
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

track::StepRecord step_in(const json& line) {
  return {.step = count_in(line, "step"),
          .loss = loss_in(line),
          .grad_norm = number_in(line, "grad_norm"),
          .lr = number_in(line, "lr"),
          .tokens = count_in(line, "tokens"),
          .supervised_tokens = count_in(line, "supervised_tokens"),
          .samples = count_in(line, "samples"),
          .step_seconds = number_in(line, "step_seconds"),
          .unix_seconds = number_in(line, "time"),
          .peak_rank_bytes = count_in(line, "peak_rank_bytes"),
          .data_wait_seconds = number_in(line, "data_wait_seconds"),
          .epochs = number_in(line, "epoch")};
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
          .unix_seconds = number_in(line, "time")};
}

std::optional<track::End> end_in(const json& line) {
  const std::string how = text_in(line, "how");
  return how == "finished"  ? std::optional(track::End::Finished)
         : how == "stopped" ? std::optional(track::End::Stopped)
         : how == "failed"  ? std::optional(track::End::Failed)
                            : std::nullopt;
}

// Lines of earlier versions do not say which entry of data.eval it is: that of the first of them.
void add_evaluation(Evaluation evaluation, RunRecords& run) {
  if (evaluation.set.digest.empty() && !run.evaluations.empty() &&
      evaluation.data != run.evaluations.front().data) {
    evaluation.set.index = 1;
  }
  run.evaluations.push_back(std::move(evaluation));
}

void add(const json& line, RunRecords& run) {
  const std::string event = text_in(line, "event");
  run.ended = event == "end" ? end_in(line) : std::nullopt;
  if (event.empty()) {
    run.steps.push_back(step_in(line));
    run.ended_early = false;  // a run that was given more patience goes on
  } else if (event == "evaluation") {
    add_evaluation(evaluation_in(line), run);
  } else if (event == "checkpoint") {
    run.checkpoint_seconds += number_in(line, "seconds");
  } else if (event == "early_stop") {
    run.ended_early = true;
  } else if (event == "begin") {
    run.ranks = static_cast<int>(count_in(line, "ranks"));
    run.hosts = static_cast<int>(count_in(line, "hosts"));
    run.isa = text_in(line, "isa");
    run.data_sha256 = text_in(line, "data_sha256");
  }
}

// Of each whole line.
void read_log(const fs::path& log, RunRecords& run) {
  const std::string text = files::read_file(log.string(), kLargestLog_bytes);
  std::size_t begin = 0;
  for (int number = 1;; ++number) {
    const std::size_t end = text.find('\n', begin);
    if (end == std::string::npos) {
      return;
    }
    const json line = json::parse(text.begin() + static_cast<std::ptrdiff_t>(begin),
                                  text.begin() + static_cast<std::ptrdiff_t>(end), nullptr,
                                  /*allow_exceptions=*/false);
    if (!line.is_object() || !line.contains("step")) {
      throw sherd::Error(sherd::ExitCode::BadData,
                         fmt::format("{}:{}: not a record of a run: one JSON object with `step`",
                                     log.string(), number));
    }
    add(line, run);
    begin = end + 1;
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

RunRecords read_run(const fs::path& folder) {
  if (!fs::is_regular_file(folder / "config.toml")) {
    throw sherd::Error(sherd::ExitCode::InputMissing,
                       fmt::format("'{}' is not the folder of a run: it has no config.toml. Give "
                                   "what train.output was.",
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
        fmt::format("the run '{}' has no log: {} is not there", folder.string(), log.string()));
  }
  read_log(log, run);
  read_ranks_of_plan(folder / "plan.json", run);
  run.memory = read_memory(folder / "plan.json");
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
  for_each_line(log, [&](const json& line) {
    const std::string event = text_in(line, "event");
    if (event.empty()) {
      step(step_in(line));
    } else if (event == "evaluation") {
      evaluation(evaluation_in(line));
    }
  });
}

std::vector<Evaluation> read_evaluations(const fs::path& log) {
  std::vector<Evaluation> found;
  for_each_record(
      log, [](const track::StepRecord&) {}, [&](const Evaluation& one) { found.push_back(one); });
  return found;
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
