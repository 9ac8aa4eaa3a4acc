#include "llm/train/run_note.h"

#include <filesystem>
#include <stdexcept>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include "sherd/error.h"

namespace llm::train {

namespace {

using nlohmann::json;

constexpr std::size_t kDigitsShown = 12;  // of a digest

std::string changed(const std::string& what, const std::string& before, const std::string& after) {
  return before == after ? "" : fmt::format("\n  {} was {} and is now {}", what, before, after);
}

// Nothing where one of the two is not known.
std::string changed_file(const std::string& what, const std::string& before,
                         const std::string& after) {
  const bool known = !before.empty() && !after.empty();
  return !known || before == after
             ? ""
             : fmt::format("\n  {} has other content: its SHA-256 was {}… and is now {}…", what,
                           before.substr(0, kDigitsShown), after.substr(0, kDigitsShown));
}

std::string settings_that_differ(const RunNote& then, const RunNote& now,
                                 const std::string& folder) {
  std::string differences;
  for (const config::Difference& each :
       config::deciding_differences(config_of(then, folder), config_of(now, folder))) {
    differences += changed(each.key, each.before, each.after);
  }
  return differences + changed("the length of the run in steps", std::to_string(then.total_steps),
                               std::to_string(now.total_steps));
}

std::string data_that_differs(const DataIdentity& then, const DataIdentity& now) {
  return changed("the number of training samples", std::to_string(then.samples),
                 std::to_string(now.samples)) +
         changed_file("the training data '" + now.path + "'", then.sha256, now.sha256) +
         changed_file("the model's tokenizer.json", then.tokenizer_sha256, now.tokenizer_sha256);
}

}  // namespace

RunNote note_of_run(const config::RunConfig& config, const DataIdentity& data,
                    std::int64_t total_steps) {
  return {.step = 0,
          .total_steps = total_steps,
          .data = data,
          .model = std::filesystem::absolute(config.model.path).string(),
          .config = config::to_toml(config),
          .isa = "",
          .origin = ""};
}

std::string other_isa(const RunNote& then, const RunNote& now) {
  const bool known = !then.isa.empty() && !now.isa.empty();
  return !known || then.isa == now.isa
             ? ""
             : fmt::format(
                   "the checkpoint was computed on the path \"{}\" of the processor, this "
                   "run computes on \"{}\": its numbers will differ in their last bits "
                   "(SHERD_CPU_ISA chooses a path)",
                   then.isa, now.isa);
}

std::string to_text(const RunNote& note) {
  return json{{"step", note.step},
              {"total_steps", note.total_steps},
              {"samples", note.data.samples},
              {"data", note.data.path},
              {"data_sha256", note.data.sha256},
              {"tokenizer_sha256", note.data.tokenizer_sha256},
              {"model", note.model},
              {"config", note.config},
              {"loss_scale", note.loss_scale},
              {"good_steps", note.good_steps},
              {"isa", note.isa},
              {"origin", note.origin}}
      .dump(-1, ' ', false, json::error_handler_t::replace);
}

RunNote note_from_text(const std::string& text, const std::string& folder) {
  try {
    const json source = json::parse(text);
    RunNote note;
    note.step = source.at("step").get<std::int64_t>();
    note.total_steps = source.at("total_steps").get<std::int64_t>();
    note.data = {source.value("data", ""), source.at("samples").get<std::int64_t>(),
                 source.value("data_sha256", ""), source.value("tokenizer_sha256", "")};
    note.model = source.at("model").get<std::string>();
    note.config = source.at("config").get<std::string>();
    note.loss_scale = source.value("loss_scale", 0.0);
    note.good_steps = source.value("good_steps", std::int64_t{0});
    note.isa = source.value("isa", "");
    note.origin = source.value("origin", "");
    return note;
  } catch (const json::exception& error) {
    throw sherd::Error(sherd::ExitCode::BadData,
                       fmt::format("the checkpoint in '{}' was not written by `sherd train`: its "
                                   "note cannot be read: {}",
                                   folder, error.what()));
  }
}

config::RunConfig config_of(const RunNote& note, const std::string& folder) {
  try {
    return config::from_toml(note.config);
  } catch (const std::invalid_argument& error) {
    throw sherd::Error(sherd::ExitCode::BadData,
                       fmt::format("the checkpoint in '{}' is perhaps of a later version: {}",
                                   folder, error.what()));
  }
}

void check_same_run(const RunNote& then, const RunNote& now, const std::string& folder) {
  const std::string settings = settings_that_differ(then, now, folder);
  const std::string data = data_that_differs(then.data, now.data);
  if (settings.empty() && data.empty()) {
    return;
  }
  const std::string advice =
      data.empty()
          ? "Restore them to resume, or start over with --resume never and another train.output. "
            "To "
            "train for longer than planned, export the checkpoint and give the export as "
            "model.path, with another train.output."
          : "Restore what has changed to resume. To train on other data from what has been "
            "learned, export the checkpoint and give the export as model.path, with another "
            "train.output; to start over, give --resume never and another train.output.";
  throw sherd::Error(
      sherd::ExitCode::Usage,
      fmt::format("the checkpoint in '{}' belongs to a run with other {}:{}{}\n{}", folder,
                  settings.empty() ? "data" : "settings", settings, data, advice));
}

}  // namespace llm::train
