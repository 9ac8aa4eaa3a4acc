// sherd fetch ORG/NAME [--revision R] [--dataset [--config NAME]]

#include "llm/hub/fetch.h"

#include <memory>
#include <string>

#include <CLI/CLI.hpp>

#include "app/hub_names.h"
#include "app/live_line.h"
#include "app/rank.h"
#include "app/verbs.h"
#include "launch/rank_environment.h"

namespace app {

namespace {

struct FetchFlags {
  std::string name;
  std::string revision = "main";
  std::string config;
  bool dataset = false;
};

int fetch(const FetchFlags& flags) {
  using llm::hub::RepoKind;
  const llm::hub::Wanted wanted{
      llm::hub::repo_of(flags.dataset ? RepoKind::Dataset : RepoKind::Model, flags.name),
      flags.revision};
  const auto settings = llm::hub::hub_settings(sherd::launch::process_environment);
  llm::track::Progress progress(output_for_people(/*json_on_stdout=*/true));
  const auto tell = [&](const std::string& line) { progress.say(line); };
  const auto grown = counted_in_megabytes(&progress);
  const auto folder = llm::track::with_progress(&progress, "fetching " + flags.name, [&] {
    return flags.dataset ? llm::hub::fetch_data(settings, wanted, {flags.config, ""}, tell, grown)
                         : llm::hub::fetch_model(settings, wanted, tell, grown);
  });
  print_result(folder.string());  // of standard output this is all
  return 0;
}

}  // namespace

void add_fetch(CLI::App& program, Verb& chosen) {
  CLI::App* verb = program.add_subcommand(
      "fetch", "Download a model or a data set from a Hugging Face hub into the cache");
  auto flags = std::make_shared<FetchFlags>();
  verb->add_option("name", flags->name, "name on the hub: ORG/NAME")->required();
  verb->add_option("--revision", flags->revision, "branch, tag or commit")->capture_default_str();
  auto* dataset = verb->add_flag("--dataset", flags->dataset,
                                 "fetch a data set (Parquet or JSON lines), not a model");
  verb->add_option("--config", flags->config, "configuration, for a data set that has several")
      ->needs(dataset);
  verb->footer(
      "Example: sherd fetch HuggingFaceTB/SmolLM2-135M-Instruct\nPrints the folder. A run also "
      "takes the name itself: as model.path, or ORG/NAME:SPLIT of a data set as data.train or "
      "data.eval. Variables: HF_TOKEN, HF_HOME, HF_HUB_CACHE, HF_ENDPOINT, HF_HUB_OFFLINE, "
      "https_proxy.");
  verb->callback([flags, &chosen] { chosen = [flags] { return fetch(*flags); }; });
}

}  // namespace app
