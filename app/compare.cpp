// sherd compare RUN RUN… [--html FILE] [--csv] [--json] [--strict]

#include <memory>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "app/rank.h"
#include "app/verbs.h"
#include "files/output.h"
#include "llm/runs/comparison.h"

namespace app {

namespace {

struct CompareFlags {
  std::vector<std::string> folders;
  std::string html;
  bool csv = false;
  bool json = false;
  bool strict = false;
};

int compare(const CompareFlags& flags) {
  const auto comparison = llm::runs::compare({flags.folders.begin(), flags.folders.end()});
  if (!flags.html.empty()) {
    sherd::files::write_file(flags.html, to_html(comparison));
  }
  print_result(flags.json  ? to_json(comparison)
               : flags.csv ? to_csv(comparison)
                           : to_text(comparison));
  return flags.strict && !comparison.comparable() ? 1 : 0;
}

}  // namespace

void add_compare(CLI::App& program, Verb& chosen) {
  CLI::App* verb = program.add_subcommand(
      "compare", "Compare runs: losses, speed, memory, scores, and whether they are comparable");
  auto flags = std::make_shared<CompareFlags>();
  verb->add_option("runs", flags->folders,
                   "output folders of runs; the others are compared with the first")
      ->required();
  verb->add_option("--html", flags->html, "also write an HTML page with tables and curves");
  auto* csv = verb->add_flag("--csv", flags->csv, "print the table as CSV");
  verb->add_flag("--json", flags->json, "print one line of JSON")->excludes(csv);
  verb->add_flag("--strict", flags->strict, "exit with 1 if the runs are not comparable");
  verb->footer("Example: sherd compare runs/sweep/*/ --html compare.html");
  verb->callback([flags, &chosen] { chosen = [flags] { return compare(*flags); }; });
}

}  // namespace app
