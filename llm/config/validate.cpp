#include <fmt/core.h>

#include "llm/config/fields.h"
#include "llm/config/run_config.h"

namespace llm::config {
namespace {

std::string with_value(const std::string& key, std::int64_t value) {
  return fmt::format("{} = {}", key, value);
}

std::string missing(const std::string& key, const Field& field) {
  const std::size_t dot = key.rfind('.');
  const std::string section = key.substr(0, dot);
  const std::size_t bracket = section.find('[');
  const std::string place =
      bracket == std::string::npos ? "[" + section + "]" : "[[" + section.substr(0, bracket) + "]]";
  return fmt::format("{0} is missing: give {1} = \"…\" under {2}, or --{0} …: {3}", key, field.name,
                     place, field.doc);
}

void check_required(RunConfig config, std::vector<Fault>& faults) {
  for (const Field& section : schema(config).fields) {
    for (const Field& field :
         section.table() != nullptr ? section.table()->fields : std::vector<Field>()) {
      const std::string key = section.name + "." + field.name;
      const bool empty_list = field.list() != nullptr && field.list()->size() == 0;
      if (field.required && empty_list) {
        faults.push_back({key, missing(key, field)});
      }
    }
  }
  for (const Leaf& leaf : leaves(config)) {
    if (leaf.field.required && leaf.text() == R"("")") {
      faults.push_back({leaf.key, missing(leaf.key, leaf.field)});
    }
  }
}

void check_batch(const TrainSection& train, std::vector<Fault>& faults) {
  if (!train.micro_batch) {
    return;
  }
  const std::int64_t samples = *train.micro_batch;
  const std::string micro = with_value("train.micro_batch", samples);
  const std::string global = with_value("train.global_batch", train.global_batch);
  if (samples > train.global_batch) {
    faults.push_back({"train.micro_batch", micro + " is larger than " + global});
  } else if (train.global_batch % samples != 0) {
    const auto lower = train.global_batch / samples * samples;
    faults.push_back({"train.global_batch",
                      fmt::format("{} is not a multiple of {}: set train.global_batch = {} or {}",
                                  global, micro, lower, lower + samples)});
  }
}

void check_warmup(const RunConfig& config, std::vector<Fault>& faults) {
  const auto steps = config.train.max_steps;
  const auto warmup = config.schedule.warmup.steps;
  if (steps && warmup && *warmup > *steps) {
    faults.push_back({"schedule.warmup", "schedule.warmup = \"" + to_text(Every::steps(*warmup)) +
                                             "\" is more than " +
                                             with_value("train.max_steps", *steps)});
  }
}

void check_lengths(const DataSection& data, std::vector<Fault>& faults) {
  if (data.max_length && data.max_answer_tokens >= *data.max_length) {
    faults.push_back(
        {"data.max_answer_tokens", with_value("data.max_answer_tokens", data.max_answer_tokens) +
                                       " leaves no room for the question in " +
                                       with_value("data.max_length", *data.max_length)});
  }
}

void check_lists(const RunConfig& config, std::vector<Fault>& faults) {
  if (config.eval.generate && config.data.eval.empty()) {
    faults.push_back(
        {"eval.generate", "eval.generate = true needs questions to answer: give data.eval"});
  }
  if (config.log.sink.size() != 1) {
    faults.push_back({"log.sink", "log.sink needs one item: others than one are not there yet"});
  }
}

}  // namespace

std::vector<Fault> validate(const RunConfig& config) {
  std::vector<Fault> faults;
  check_required(config, faults);
  check_batch(config.train, faults);
  check_warmup(config, faults);
  check_lengths(config.data, faults);
  check_lists(config, faults);
  return faults;
}

}  // namespace llm::config
