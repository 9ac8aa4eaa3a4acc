// sherd import MODEL.gguf DIR

#include <memory>
#include <string>

#include <CLI/CLI.hpp>
#include <fmt/core.h>

#include "app/live_line.h"
#include "app/rank.h"
#include "app/verbs.h"
#include "llm/gguf/import_gguf.h"
#include "llm/track/step_record.h"

namespace app {

namespace {

int write_import(const llm::gguf::ImportOptions& options) {
  llm::track::Progress progress(output_for_people());
  const auto outcome = llm::track::with_progress(&progress, "importing",
                                                 [&] { return llm::gguf::import_gguf(options); });
  say(fmt::format("imported {} ({}) to {}: {} tensors, {}", options.file, outcome.architecture,
                  options.folder, outcome.tensors, llm::track::short_bytes(outcome.file_bytes)));
  return 0;
}

}  // namespace

void add_import(CLI::App& program, Verb& chosen) {
  CLI::App* verb = program.add_subcommand(
      "import", "Write a GGUF file as a Hugging Face folder (weights, config, tokenizer)");
  auto options = std::make_shared<llm::gguf::ImportOptions>();
  verb->add_option("file", options->file,
                   "GGUF file: F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, "
                   "Q4_K or Q6_K")
      ->required();
  verb->add_option("folder", options->folder, "folder to write")->required();
  verb->footer("Example: sherd import model.gguf models/mine\nQuantised weights become fp32.");
  verb->callback([options, &chosen] { chosen = [options] { return write_import(*options); }; });
}

}  // namespace app
