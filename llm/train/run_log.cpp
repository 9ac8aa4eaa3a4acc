#include "llm/train/run_log.h"

#include <filesystem>
#include <fstream>
#include <utility>

#include <nlohmann/json.hpp>

namespace llm::train {

namespace {

nlohmann::ordered_json identity_of(const EvaluationKey& key) {
  return {{"event", "evaluation"},          {"step", key.step},
          {"data_index", key.set.index},    {"data_set", key.set.digest},
          {"data_sha256", key.data_sha256}, {"samples", key.samples},
          {"generated", key.generated}};
}

track::EvaluationRecord tracked(const runs::Evaluation& one, const std::string& name) {
  return {.step = one.step,
          .data = name,
          .loss = one.loss,
          .generated = one.em.has_value(),
          .em = one.em.value_or(0),
          .f1 = one.f1.value_or(0),
          .seconds = one.seconds,
          .unix_seconds = one.unix_seconds,
          .figures = one.figures};
}

// What the log at `path` keeps of `steps_done`. It may be written to at the same time.
track::EarlierPoints points_of(const std::string& path, std::int64_t steps_done,
                               const std::vector<std::string>& eval_names) {
  return [=](const std::function<void(const track::Point&)>& take) {
    runs::for_each_record(
        path,
        [&](const track::StepRecord& step) {
          if (step.step <= steps_done) {
            take(track::point_of(step));
          }
        },
        [&](const runs::Evaluation& one) {
          const auto index = static_cast<std::size_t>(one.set.index);
          if (one.step <= steps_done && index < eval_names.size()) {
            take(track::point_of(tracked(one, eval_names[index])));
          }
        });
  };
}

}  // namespace

RunLog::RunLog(const std::string& path, std::int64_t steps_done, track::Trackers& trackers,
               const std::vector<std::string>& eval_paths, track::JsonlLog::Warn warn)
    : path_(path),
      lines_(path, steps_done, std::move(warn)),
      trackers_(trackers),
      eval_names_(track::evaluation_names(eval_paths)) {
  trackers_.begin(steps_done, steps_done > 0 ? points_of(path, steps_done, eval_names_)
                                             : track::EarlierPoints());
}

void RunLog::write_line(const std::string& json) {
  has_written_ = true;
  lines_.write(json);
}

void RunLog::write(const track::StepRecord& record) {
  write_line(track::step_json(record));
  trackers_.log(track::point_of(record));
}

void RunLog::write(const EvaluationKey& key, const std::string& data,
                   const eval::EvaluationResult& result, const std::string& predictions) {
  nlohmann::ordered_json line = identity_of(key);
  line["data"] = data;
  line["loss"] = result.loss;
  if (key.generated) {
    line["em"] = result.em;
    line["f1"] = result.f1;
  }
  if (!result.figures.empty()) {
    line["figures"] = result.figures;
  }
  if (!predictions.empty()) {
    line["predictions"] = predictions;
  }
  line["supervised_tokens"] = result.supervised_tokens;
  line["seconds"] = result.seconds;
  const double now = track::unix_seconds_now();
  line["time"] = now;
  write_line(line.dump());
  const std::string& name = eval_names_.at(static_cast<std::size_t>(key.set.index));
  trackers_.log(track::point_of(track::EvaluationRecord{.step = key.step,
                                                        .data = name,
                                                        .loss = result.loss,
                                                        .generated = key.generated,
                                                        .em = result.em,
                                                        .f1 = result.f1,
                                                        .seconds = result.seconds,
                                                        .unix_seconds = now,
                                                        .figures = result.figures}));
}

void RunLog::write(const Beginning& beginning) {
  nlohmann::ordered_json line = {{"event", "begin"},
                                 {"step", beginning.step},
                                 {"ranks", beginning.ranks},
                                 {"hosts", beginning.hosts},
                                 {"threads", beginning.threads},
                                 {"transport", beginning.transport},
                                 {"isa", beginning.isa},
                                 {"data_sha256", beginning.data_sha256}};
  if (beginning.peak_operations_per_second) {
    line["peak_operations_per_second"] = *beginning.peak_operations_per_second;
  }
  line["time"] = track::unix_seconds_now();
  write_line(line.dump());
}

void RunLog::write_changes(std::int64_t step, const std::vector<config::Difference>& changes) {
  nlohmann::ordered_json line = {{"event", "change"}, {"step", step}};
  for (const config::Difference& each : changes) {
    line["changes"].push_back({{"key", each.key}, {"before", each.before}, {"after", each.after}});
  }
  line["time"] = track::unix_seconds_now();
  write_line(line.dump());
}

void RunLog::write_checkpoint(std::int64_t step, const std::string& folder, double seconds) {
  const nlohmann::ordered_json line = {{"event", "checkpoint"},
                                       {"step", step},
                                       {"folder", folder},
                                       {"seconds", seconds},
                                       {"time", track::unix_seconds_now()}};
  write_line(line.dump());
}

void RunLog::write(const runs::BestEvaluation& best) {
  const nlohmann::ordered_json line = {{"event", "best"},
                                       {"step", best.step},
                                       {"by", runs::name_of(best.by)},
                                       {"value", best.value},
                                       {"time", track::unix_seconds_now()}};
  write_line(line.dump());
}

void RunLog::write_early_stop(std::int64_t step, const runs::EvaluationCourse& course) {
  nlohmann::ordered_json line = {
      {"event", "early_stop"}, {"step", step}, {"without_improvement", course.without_improvement}};
  if (course.best) {
    line["best_step"] = course.best->step;
  }
  line["time"] = track::unix_seconds_now();
  write_line(line.dump());
}

void RunLog::write_end(std::int64_t step, track::End how, const std::string& why) {
  if (!std::exchange(has_written_, false)) {
    return;
  }
  nlohmann::ordered_json line = {{"event", "end"}, {"step", step}, {"how", track::name_of(how)}};
  if (!why.empty()) {
    line["why"] = why;
  }
  line["time"] = track::unix_seconds_now();
  lines_.write(line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
}

std::vector<runs::Evaluation> RunLog::evaluations(const EvaluationKey& first) const {
  std::vector<runs::Evaluation> found = runs::read_evaluations(path_);
  runs::name_sets(found,
                  {.samples = first.samples, .data_sha256 = first.data_sha256, .set = first.set});
  return found;
}

bool RunLog::has(const EvaluationKey& key) const {
  const auto wanted = identity_of(key);
  std::ifstream file;
  if (std::filesystem::is_regular_file(path_)) {  // opening a pipe would wait for its writer
    file.open(path_);
  }
  for (std::string text; std::getline(file, text);) {
    const auto line = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
    bool same = line.is_object();
    for (const auto& [name, value] : wanted.items()) {
      const bool is_new = name == "data_set" || name == "data_index";  // since after 0.1.0
      same = same && (line.contains(name) ? line[name] == nlohmann::json(value) : is_new);
    }
    if (same) {
      return true;
    }
  }
  return false;
}

}  // namespace llm::train
