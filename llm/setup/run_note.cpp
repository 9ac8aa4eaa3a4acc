#include "llm/setup/run_note.h"

#include <filesystem>
#include <map>
#include <stdexcept>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include "files/sha256.h"
#include "sherd/error.h"

namespace llm::setup {

namespace {

using nlohmann::json;

constexpr std::size_t kDigitsShown = 12;  // of a digest

std::string changed(const std::string& what, const std::string& before, const std::string& after) {
  return before == after ? "" : fmt::format("\n  {} was {} and is now {}", what, before, after);
}

// Of a text; empty: there is none.
std::string digest_of_text(const std::string& text) {
  return text.empty() ? "" : sherd::files::sha256_of(text);
}

// Nothing where one of the two is not known.
std::string changed_file(const std::string& what, const std::string& before,
                         const std::string& after) {
  const bool known = !before.empty() && !after.empty();
  return !known || before == after
             ? ""
             : fmt::format("\n  {} has different content: its SHA-256 was {}… and is now {}…", what,
                           before.substr(0, kDigitsShown), after.substr(0, kDigitsShown));
}

std::string settings_that_differ(const RunNote& then, const RunNote& now,
                                 const std::string& folder) {
  std::string differences;
  for (const config::Difference& each :
       config::deciding_differences(config_of(then, folder), config_of(now, folder))) {
    if (each.on_resume == config::OnResume::Fixed) {
      differences += changed(each.key, each.before, each.after);
    }
  }
  return differences;
}

std::string data_that_differs(const RunNote& then, const RunNote& now) {
  const bool model_values_known = !then.model_values.empty() && !now.model_values.empty();
  return changed("the number of training samples", std::to_string(then.data.samples),
                 std::to_string(now.data.samples)) +
         changed_file("the training data '" + now.data.path + "'", then.data.sha256,
                      now.data.sha256) +
         changed_file("the chat template (data.chat_template)", digest_of_text(then.chat_template),
                      digest_of_text(now.chat_template)) +
         (model_values_known ? ""  // the tokenizer is one of them
                             : changed_file("the model's tokenizer.json",
                                            then.data.tokenizer_sha256, now.data.tokenizer_sha256));
}

bool is_length(const config::Difference& each) {
  return each.key == "train.epochs" || each.key == "train.max_steps";
}

json to_json(const ModelValues& values) {
  json object = json::object();
  for (const auto& [name, value] : values) {
    object[name] = value;
  }
  return object;
}

json to_json(const BaseWeights& base) {
  json files = json::array();
  for (const WeightFile& file : base.files) {
    files.push_back({file.name, file.bytes, file.modified_ns});
  }
  return {{"sha256", base.sha256}, {"files", std::move(files)}, {"folder", base.folder}};
}

BaseWeights base_in(const json& source) {
  BaseWeights base;
  if (source.contains("base")) {
    source["base"].at("sha256").get_to(base.sha256);
    base.folder = source["base"].value("folder", "");
    for (const json& file : source["base"].at("files")) {
      base.files.push_back({file.at(0).get<std::string>(), file.at(1).get<std::int64_t>(),
                            file.at(2).get<std::int64_t>()});
    }
  }
  return base;
}

ReferenceKey reference_in(const json& source) {
  ReferenceKey reference;
  if (source.contains("reference")) {
    source["reference"].at("sha256").get_to(reference.sha256);
    source["reference"].at("weights").get_to(reference.weights);
  }
  return reference;
}

ModelValues model_values_in(const json& source) {
  ModelValues values;
  const json found = source.value("model_values", json::object());
  for (const auto& [name, value] : found.items()) {
    values.emplace_back(name, value.get<std::string>());
  }
  return values;
}

}  // namespace

RunNote note_of_run(const config::RunConfig& config, const inputs::DataIdentity& data,
                    std::int64_t total_steps) {
  return {.step = 0,
          .total_steps = total_steps,
          .data = data,
          .model = std::filesystem::absolute(config.model.path).string(),
          .model_values = {},
          .config = config::to_toml(config),
          .isa = "",
          .origin = "",
          .overwritten_by = ""};
}

std::string other_isa(const RunNote& then, const RunNote& now) {
  const bool known = !then.isa.empty() && !now.isa.empty();
  return !known || then.isa == now.isa
             ? ""
             : fmt::format(
                   "the checkpoint was computed with the CPU path \"{}\", and this run uses "
                   "\"{}\": results will differ in the last bits (SHERD_CPU_ISA selects a path)",
                   then.isa, now.isa);
}

std::string to_text(const RunNote& note) {
  json text = {{"step", note.step},
               {"total_steps", note.total_steps},
               {"samples", note.data.samples},
               {"data", note.data.path},
               {"data_sha256", note.data.sha256},
               {"tokenizer_sha256", note.data.tokenizer_sha256},
               {"model", note.model},
               {"model_values", to_json(note.model_values)},
               {"config", note.config},
               {"loss_scale", note.loss_scale},
               {"good_steps", note.good_steps},
               {"isa", note.isa},
               {"origin", note.origin},
               {"overwritten_by", note.overwritten_by},
               {"skipped_steps", note.skipped_steps},
               {"chat_template", note.chat_template}};
  if (!note.base.empty()) {
    text["base"] = to_json(note.base);
  }
  if (!note.reference.empty()) {
    text["reference"] = {{"sha256", note.reference.sha256}, {"weights", note.reference.weights}};
  }
  return text.dump(-1, ' ', false, json::error_handler_t::replace);
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
    note.model_values = model_values_in(source);
    note.overwritten_by = source.value("overwritten_by", "");
    note.skipped_steps = source.value("skipped_steps", std::int64_t{0});
    note.chat_template = source.value("chat_template", "");
    note.base = base_in(source);
    note.reference = reference_in(source);
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
                       fmt::format("the checkpoint in '{}' may be from a later version: {}", folder,
                                   error.what()));
  }
}

void check_same_run(const RunNote& then, const RunNote& now, const std::string& folder) {
  const std::string settings = settings_that_differ(then, now, folder);
  const std::string model = changed_model(then.model_values, now.model_values);
  const std::string base =
      changed_file("the base '" + now.model + "'", then.base.sha256, now.base.sha256);
  const std::string data = data_that_differs(then, now);
  if (settings.empty() && model.empty() && base.empty() && data.empty()) {
    return;
  }
  const std::string advice =
      settings.empty() && model.empty() && !base.empty()
          ? "The checkpoint holds only the parameters that were trained, and needs the weights "
            "that "
            "they were trained over: restore them, or give a folder that has them as model.path. "
            "To start over, give --resume never and another train.output."
      : settings.empty()
          ? "To resume, restore what has changed. To continue from the trained weights, export the "
            "checkpoint and give the export as model.path, with another train.output. To start "
            "over, give --resume never and another train.output."
          : "Restore them to resume, or start over with --resume never and another train.output. "
            "What may change on resume is in docs/guide/configuration.md: optim.lr, the schedule, "
            "the length, clipping, dtypes and more.";
  throw sherd::Error(
      sherd::ExitCode::Usage,
      fmt::format("the checkpoint in '{}' belongs to a run with {}:{}{}{}{}\n{}", folder,
                  !settings.empty() ? "other settings"
                  : !model.empty()  ? "another model"
                  : !base.empty()   ? "another base"
                                    : "other data",
                  settings, model, base, data, advice));
}

std::vector<config::Difference> changed_numbers(const RunNote& then, const RunNote& now,
                                                const std::string& folder) {
  std::vector<config::Difference> changes =
      config::deciding_differences(config_of(then, folder), config_of(now, folder));
  const bool same_length = then.total_steps == now.total_steps;
  std::erase_if(changes, [&](const config::Difference& each) {
    return each.on_resume != config::OnResume::Numbers || (same_length && is_length(each));
  });
  return changes;
}

std::string changes_line(std::int64_t step, const std::vector<config::Difference>& changes) {
  std::string line;
  for (const config::Difference& each : changes) {
    line +=
        fmt::format("{} {} {} -> {}", line.empty() ? "" : ",", each.key, each.before, each.after);
  }
  return line.empty() ? "" : fmt::format("changed since step {}:{}", step, line);
}

std::string changed_model(const ModelValues& then, const ModelValues& now) {
  if (then.empty() || now.empty()) {
    return "";
  }
  constexpr const char* kAbsent = "absent";
  std::map<std::string, std::string> before(then.begin(), then.end());
  std::string lines;
  for (const auto& [name, value] : now) {
    const auto found = before.find(name);
    lines += changed(name, found == before.end() ? kAbsent : found->second, value);
    before.erase(name);
  }
  for (const auto& [name, value] : before) {
    lines += changed(name, value, kAbsent);
  }
  return lines;
}

}  // namespace llm::setup
