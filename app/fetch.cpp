// sherd fetch ORG/NAME [--revision R]

#include "llm/hub/fetch.h"

#include <memory>
#include <string>

#include <CLI/CLI.hpp>

#include "app/rank.h"
#include "app/verbs.h"
#include "launch/rank_environment.h"
#include "sherd/error.h"

namespace app {

namespace {

struct FetchFlags {
  std::string name;
  std::string revision = "main";
  bool dataset = false;
};

int fetch(const FetchFlags& flags) {
  using llm::hub::RepoKind;
  const auto repo =
      llm::hub::repo_of(flags.dataset ? RepoKind::Dataset : RepoKind::Model, flags.name);
  if (flags.dataset) {
    throw sherd::Error(sherd::ExitCode::Usage,
                       "--dataset " + repo.name +
                           ": data sets are not fetched yet: the hub keeps them as Parquet, which "
                           "Sherd does not read. Give a file of SQuAD's JSON in data.train and "
                           "data.eval");
  }
  const auto settings = llm::hub::hub_settings(sherd::launch::process_environment);
  const auto folder =
      llm::hub::fetch_model(settings, repo, flags.revision, [](const std::string& line) {
        say(line, /*json_on_stdout=*/true);  // standard output is the folder alone
      });
  say(folder.string());
  return 0;
}

}  // namespace

void add_fetch(CLI::App& program, int& exit_code) {
  CLI::App* verb =
      program.add_subcommand("fetch", "Bring a model of a Hugging Face hub into the cache");
  auto flags = std::make_shared<FetchFlags>();
  verb->add_option("name", flags->name, "ORG/NAME")->required();
  verb->add_option("--revision", flags->revision, "branch, tag or commit")->capture_default_str();
  verb->add_flag("--dataset", flags->dataset, "a data set (not there yet)");
  verb->footer(
      "Example: sherd fetch HuggingFaceTB/SmolLM2-135M-Instruct\n"
      "Prints the folder; a run takes the name itself as model.path. Variables: HF_TOKEN, HF_HOME, "
      "HF_HUB_CACHE, HF_ENDPOINT, HF_HUB_OFFLINE, https_proxy.");
  verb->callback([flags, &exit_code] { exit_code = fetch(*flags); });
}

}  // namespace app
