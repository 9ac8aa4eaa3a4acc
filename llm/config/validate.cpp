#include "llm/config/fields.h"
#include "llm/config/run_config.h"

namespace llm::config {
namespace {

std::string with_value(const std::string& key, std::int64_t value) {
  return key + " = " + std::to_string(value);
}

void check_required(RunConfig config, std::vector<Fault>& faults) {
  for (const Field& field : fields_of(config)) {
    if (field.required && std::get<std::string*>(field.slot)->empty()) {
      faults.push_back({field.key(), field.key() + " is missing: give " + field.name +
                                         " = \"…\" under [" + field.section + "], or --" +
                                         field.key() + " …: " + field.doc});
    }
  }
}

void check_batch(const TrainSection& train, std::vector<Fault>& faults) {
  const std::string micro = with_value("train.micro_batch", train.micro_batch);
  const std::string global = with_value("train.global_batch", train.global_batch);
  if (train.micro_batch > train.global_batch) {
    faults.push_back({"train.micro_batch", micro + " is larger than " + global});
  } else if (train.global_batch % train.micro_batch != 0) {
    faults.push_back({"train.global_batch", global + " is not a multiple of " + micro});
  }
}

void check_eval(const RunConfig& config, std::vector<Fault>& faults) {
  if (!config.data.eval.empty()) {
    return;
  }
  if (config.eval.every_steps > 0) {
    faults.push_back({"eval.every_steps", with_value("eval.every_steps", config.eval.every_steps) +
                                              " needs questions to evaluate: give data.eval"});
  }
  if (config.eval.generate) {
    faults.push_back(
        {"eval.generate", "eval.generate = true needs questions to answer: give data.eval"});
  }
}

}  // namespace

std::vector<Fault> validate(const RunConfig& config) {
  std::vector<Fault> faults;
  check_required(config, faults);
  check_batch(config.train, faults);
  const std::int64_t steps = config.train.max_steps;
  if (steps > 0 && config.optim.warmup_steps > steps) {
    faults.push_back(
        {"optim.warmup_steps", with_value("optim.warmup_steps", config.optim.warmup_steps) +
                                   " is more than " + with_value("train.max_steps", steps)});
  }
  const std::int64_t length = config.data.max_length;
  if (length > 0 && config.data.max_answer_tokens >= length) {
    faults.push_back({"data.max_answer_tokens",
                      with_value("data.max_answer_tokens", config.data.max_answer_tokens) +
                          " leaves no room for the question in " +
                          with_value("data.max_length", length)});
  }
  check_eval(config, faults);
  return faults;
}

}  // namespace llm::config
