// sherd data preview RECIPE [--samples N] [--full] [--html FILE] [--json] [--section.key …]
// sherd data prepare RECIPE [--json] [--section.key …]

#include <memory>
#include <string>

#include <CLI/CLI.hpp>
#include <fmt/core.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "app/end_at_once.h"
#include "app/hub_names.h"
#include "app/live_line.h"
#include "app/numbers.h"
#include "app/rank.h"
#include "app/recipe.h"
#include "app/verbs.h"
#include "files/output.h"
#include "launch/stop_request.h"
#include "llm/inputs/data_preview.h"
#include "llm/inputs/prepare.h"
#include "llm/inputs/preview_text.h"
#include "llm/setup/load_data.h"
#include "llm/text/printable.h"
#include "llm/train/start.h"
#include "sherd/error.h"
#include "sherd/world.h"

namespace app {

namespace {

struct PreviewFlags {
  std::int64_t samples = 3;
  std::string html;
  bool full = false;
  bool json = false;
};

// Elsewhere -n is a number of ranks.
void refuse_ranks(const std::vector<std::string>& words) {
  for (const std::string& word : words) {
    if (word.starts_with("-n") && !word.starts_with("--")) {
      throw sherd::Error(sherd::ExitCode::Usage,
                         "-n is the number of ranks, and a preview has none: give --samples N for "
                         "the number of samples");
    }
  }
}

int preview(const PreviewFlags& flags, const std::vector<std::string>& words) {
  refuse_ranks(words);
  llm::track::Progress progress(output_for_people(flags.json));
  const auto tell = [&](const std::string& line) { progress.say(line); };
  sherd::World world = sherd::World::alone();
  auto given = load_recipe_to_read(words, tell);
  HubNames({.json_on_stdout = flags.json, .progress = &progress}).resolve(given);
  const auto config = llm::train::resolved(given, world);
  const auto run = llm::train::open_inputs(config, world, tell, &progress);
  const auto shown = llm::track::with_progress(&progress, "reading the samples shown", [&] {
    return llm::inputs::preview_of(run, flags.samples);
  });
  using llm::inputs::Clip;
  using llm::inputs::Marks;
  const Clip clip = flags.full ? Clip::None : Clip::Middle;
  if (!flags.html.empty()) {
    sherd::files::write_file(flags.html, to_html(shown, clip));
    tell("written: " + flags.html);
  }
  const Marks marks = ::isatty(STDOUT_FILENO) == 1 ? Marks::Colour : Marks::Brackets;
  print_result(flags.json ? to_json(shown) : to_text(shown, marks, clip));
  return 0;
}

nlohmann::ordered_json json_of(const llm::inputs::DatasetReport& report) {
  auto unread = nlohmann::ordered_json::object();
  for (const auto& field : report.unread.all()) {
    unread[field.name] = field.records;
  }
  return {{"data", report.name},
          {"samples", report.samples},
          {"skipped", report.skipped},
          {"duplicates", report.duplicates},
          {"tokens", report.tokens},
          {"supervised_tokens", report.supervised_tokens},
          {"conversations", report.chat.conversations},
          {"fields_not_read", unread}};
}

// Of a preparation that a signal ends; `folder` keeps stores, unless it is empty.
std::string stop_line(const std::string& folder) {
  return folder.empty()
             ? "stopped on request: nothing was kept, since data.cache is none; the same "
               "command starts over"
             : "stopped on request: no store is half-written, and " + folder +
                   " keeps what is finished; the same command continues there";
}

// Makes what a run of the recipe would make first.
int prepare(bool json, const std::vector<std::string>& words) {
  llm::track::Progress progress(output_for_people(json));
  const auto tell = [&](const std::string& line) { progress.say(line); };
  sherd::World world = sherd::World::alone();
  auto config = load_recipe_to_read(words, tell);
  const std::string folder = llm::inputs::store_folder(config.data.cache).string();
  sherd::launch::StopRequest::install(/*launched=*/false);
  const EndAtOnce end_at_once(static_cast<int>(sherd::ExitCode::Stopped),
                              sherd::launch::StopRequest::requested,
                              [&] { say(stop_line(folder), json); });
  HubNames({.json_on_stdout = json, .progress = &progress}).resolve(config);
  const auto tokenizer = llm::setup::load_tokenizer(config.model.path);
  const auto shape = llm::setup::model_shape(config.model.path, {config.model.ignore_fields});
  const auto data = llm::setup::load_run_data(config, tokenizer, shape, world, tell, &progress);
  for (const auto& part : data.parts) {
    if (part.report.duplicates > 0) {
      tell(fmt::format("data: {}: {} of {} repeat{} an earlier sample", part.report.name,
                       part.report.duplicates, llm::text::counted(part.report.samples, "sample"),
                       part.report.duplicates == 1 ? "s" : ""));
    }
  }
  tell(folder.empty() ? "nothing is kept: data.cache is none" : "prepared in " + folder);
  if (json) {
    nlohmann::ordered_json line = {{"folder", folder}, {"files", nlohmann::ordered_json::array()}};
    for (const auto& part : data.parts) {
      line["files"].push_back(json_of(part.report));
    }
    for (const auto& heldout : data.heldout) {
      line["files"].push_back(json_of(heldout.dataset.report));
    }
    print_result(line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
  }
  return 0;
}

void add_prepare(CLI::App& data, Verb& chosen) {
  CLI::App* verb = data.add_subcommand(
      "prepare", "Tokenize the data of a recipe, so that its run starts at once");
  auto json = std::make_shared<bool>(false);
  verb->add_flag("--json", *json, "print one line of JSON on standard output");
  verb->footer(
      "Example: sherd data prepare recipes/own-data.toml\nEvery configuration key is also a flag, "
      "as in sherd train: keys that samples depend on must be those of the run. No GPU is used. A "
      "second start continues what a first one began.");
  show_recipe_in_usage(*verb);
  verb->allow_extras();  // the configuration's flags are llm::config's to read
  verb->callback([verb, json, &chosen] {
    chosen = [json, words = verb->remaining()] { return prepare(*json, words); };
  });
}

}  // namespace

void add_data(CLI::App& program, Verb& chosen) {
  CLI::App* data =
      program.add_subcommand("data", "Show or prepare the data that a run is trained on");
  data->require_subcommand(1);
  add_prepare(*data, chosen);
  CLI::App* verb = data->add_subcommand(
      "preview",
      "Show the first samples of a recipe as the model sees them, and figures of all samples");
  auto flags = std::make_shared<PreviewFlags>();
  verb->add_option("--samples", flags->samples, "number of samples to show, in training order")
      ->capture_default_str()
      ->check(within(std::int64_t{0}, std::int64_t{1000}));
  verb->add_option("--html", flags->html, "also write an HTML page of them");
  verb->add_flag("--full", flags->full,
                 "show long samples in full; by default their middle is left out");
  verb->add_flag("--json", flags->json, "print one line of JSON on standard output");
  verb->footer(
      "Example: sherd data preview recipes/own-data.toml\nEvery configuration key is also a flag, "
      "as in sherd train. No weights are loaded, and the run's output is not touched.");
  show_recipe_in_usage(*verb);
  verb->allow_extras();  // the configuration's flags are llm::config's to read
  verb->callback([verb, flags, &chosen] {
    chosen = [flags, words = verb->remaining()] { return preview(*flags, words); };
  });
}

}  // namespace app
