#include "llm/train/run_note.h"

#include <map>
#include <sstream>

#include <nlohmann/json.hpp>

#include "sherd/error.h"

namespace llm::train {

namespace {

using nlohmann::json;

// What decides the numbers of a run; paths, logging and the way ranks are used do not.
constexpr const char* kDeciding[] = {"data.max_length",      "data.max_answer_tokens",
                                     "data.train_limit",     "train.global_batch",
                                     "train.seed",           "optim.lr",
                                     "optim.betas",          "optim.eps",
                                     "optim.weight_decay",   "optim.schedule",
                                     "optim.warmup_steps",   "optim.min_lr_ratio",
                                     "optim.clip_grad_norm", "precision.param_dtype"};

// "section.key" -> value as written, from the TOML that this program prints itself: a key a line.
std::map<std::string, std::string> values_of(const std::string& toml) {
  std::map<std::string, std::string> values;
  std::istringstream lines(toml);
  std::string section;
  for (std::string line; std::getline(lines, line);) {
    if (line.size() > 2 && line.front() == '[') {
      section = line.substr(1, line.find(']') - 1);
    } else if (const size_t equals = line.find(" = "); equals != std::string::npos) {
      values[section + "." + line.substr(0, equals)] = line.substr(equals + 3);
    }
  }
  return values;
}

}  // namespace

std::string to_text(const RunNote& note) {
  return json{{"step", note.step},
              {"total_steps", note.total_steps},
              {"samples", note.samples},
              {"model", note.model},
              {"config", note.config}}
      .dump();
}

RunNote note_from_text(const std::string& text, const std::string& folder) {
  try {
    const json source = json::parse(text);
    return {source.at("step").get<std::int64_t>(), source.at("total_steps").get<std::int64_t>(),
            source.at("samples").get<std::int64_t>(), source.at("model").get<std::string>(),
            source.at("config").get<std::string>()};
  } catch (const json::exception& error) {
    throw sherd::Error(sherd::ExitCode::BadData,
                       "the checkpoint in '" + folder +
                           "' was not written by `sherd train`: its note cannot be "
                           "read: " +
                           error.what());
  }
}

void check_same_run(const RunNote& note, const config::RunConfig& config, std::int64_t samples,
                    std::int64_t total_steps, const std::string& folder) {
  auto then = values_of(note.config);
  auto now = values_of(config::to_toml(config));
  std::string differences;
  const auto compare = [&](const std::string& what, const std::string& before,
                           const std::string& after) {
    if (before != after) {
      differences += "\n  " + what + " was " + before + " and is now " + after;
    }
  };
  for (const char* key : kDeciding) {
    compare(key, then[key], now[key]);
  }
  compare("the number of training samples", std::to_string(note.samples), std::to_string(samples));
  compare("the length of the run in steps", std::to_string(note.total_steps),
          std::to_string(total_steps));
  if (!differences.empty()) {
    throw sherd::Error(sherd::ExitCode::Usage,
                       "the checkpoint in '" + folder +
                           "' belongs to a run with other settings:" + differences +
                           "\nRestore them to resume, start anew with --resume never, or use "
                           "another train.output.");
  }
}

}  // namespace llm::train
