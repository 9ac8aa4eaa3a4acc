#include "llm/train/run_log.h"

#include <fstream>

#include <nlohmann/json.hpp>

namespace llm::train {

namespace {

nlohmann::ordered_json identity_of(const EvaluationKey& key) {
  return {{"event", "evaluation"},
          {"step", key.step},
          {"data_sha256", key.data_sha256},
          {"samples", key.samples},
          {"generated", key.generated}};
}

}  // namespace

void RunLog::write(const track::StepRecord& record) {
  lines_.write(track::step_json(record));
  trackers_.log(track::point_of(record));
}

void RunLog::write(const EvaluationKey& key, const std::string& data, bool one_of_several,
                   const eval::EvaluationResult& result, const std::string& predictions) {
  nlohmann::ordered_json line = identity_of(key);
  line["data"] = data;
  line["loss"] = result.loss;
  if (key.generated) {
    line["em"] = result.em;
    line["f1"] = result.f1;
  }
  if (!predictions.empty()) {
    line["predictions"] = predictions;
  }
  line["supervised_tokens"] = result.supervised_tokens;
  line["seconds"] = result.seconds;
  const double now = track::unix_seconds_now();
  line["time"] = now;
  lines_.write(line.dump());
  trackers_.log(track::point_of(track::EvaluationRecord{.step = key.step,
                                                        .data = one_of_several ? data : "",
                                                        .loss = result.loss,
                                                        .generated = key.generated,
                                                        .em = result.em,
                                                        .f1 = result.f1,
                                                        .seconds = result.seconds,
                                                        .unix_seconds = now}));
}

void RunLog::write(const Beginning& beginning) {
  const nlohmann::ordered_json line = {{"event", "begin"},
                                       {"step", beginning.step},
                                       {"ranks", beginning.ranks},
                                       {"hosts", beginning.hosts},
                                       {"threads", beginning.threads},
                                       {"transport", beginning.transport},
                                       {"isa", beginning.isa},
                                       {"data_sha256", beginning.data_sha256},
                                       {"time", track::unix_seconds_now()}};
  lines_.write(line.dump());
}

void RunLog::write_checkpoint(std::int64_t step, const std::string& folder, double seconds) {
  const nlohmann::ordered_json line = {{"event", "checkpoint"},
                                       {"step", step},
                                       {"folder", folder},
                                       {"seconds", seconds},
                                       {"time", track::unix_seconds_now()}};
  lines_.write(line.dump());
}

void RunLog::write(const runs::BestEvaluation& best) {
  const nlohmann::ordered_json line = {{"event", "best"},
                                       {"step", best.step},
                                       {"by", runs::name_of(best.by)},
                                       {"value", best.value},
                                       {"time", track::unix_seconds_now()}};
  lines_.write(line.dump());
}

void RunLog::write_early_stop(std::int64_t step, const runs::EvaluationCourse& course) {
  nlohmann::ordered_json line = {
      {"event", "early_stop"}, {"step", step}, {"without_improvement", course.without_improvement}};
  if (course.best) {
    line["best_step"] = course.best->step;
  }
  line["time"] = track::unix_seconds_now();
  lines_.write(line.dump());
}

bool RunLog::has(const EvaluationKey& key) const {
  const auto wanted = identity_of(key);
  std::ifstream file(path_);
  for (std::string text; std::getline(file, text);) {
    const auto line = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
    bool same = line.is_object();
    for (const auto& [name, value] : wanted.items()) {
      same = same && line.contains(name) && line[name] == nlohmann::json(value);
    }
    if (same) {
      return true;
    }
  }
  return false;
}

}  // namespace llm::train
