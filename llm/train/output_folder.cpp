#include "llm/train/output_folder.h"

#include <cstdio>
#include <system_error>

#include "files/output.h"
#include "sherd/error.h"

namespace llm::train {

namespace fs = std::filesystem;

namespace {

// Empty, or why the folder cannot be written to.
std::string fault_of_folder(const config::RunConfig& config) {
  std::error_code error;
  fs::create_directories(config.train.output, error);
  if (error || !fs::is_directory(config.train.output)) {
    return error ? error.message() : "a file of that name is there";
  }
  const fs::path path = fs::path(config.train.output) / "config.toml";
  try {
    sherd::files::write_file(path.string(), config::to_toml(config));
  } catch (const sherd::Error& fault) {
    return fault.what();
  }
  return "";
}

}  // namespace

fs::path log_path(const config::RunConfig& config) {
  return config.log.jsonl.empty() ? fs::path(config.train.output) / "log.jsonl"
                                  : fs::path(config.log.jsonl);
}

void prepare_output(const config::RunConfig& config, sherd::World& world) {
  const std::string mine = world.rank() == 0 ? fault_of_folder(config) : "";
  const std::string fault = world.all_gather(mine).front();
  if (!fault.empty()) {
    throw sherd::Error(sherd::ExitCode::CannotWrite, "cannot write to the output folder '" +
                                                         config.train.output + "': " + fault +
                                                         ". Set train.output to another folder.");
  }
}

std::string evaluation_line(const eval::EvaluationResult& result, bool generated) {
  char text[256];
  std::snprintf(text, sizeof text,
                "evaluation: loss %.4f over %lld samples (%lld supervised tokens)", result.loss,
                static_cast<long long>(result.samples),
                static_cast<long long>(result.supervised_tokens));
  std::string line = text;
  if (generated) {
    std::snprintf(text, sizeof text, ", EM %.1f, F1 %.1f", result.em, result.f1);
    line += text;
  }
  std::snprintf(text, sizeof text, ", %.1f samples/s", result.samples_per_second());
  return line + text;
}

}  // namespace llm::train
