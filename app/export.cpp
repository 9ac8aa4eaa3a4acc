// sherd export RUN [--checkpoint best|last|STEP] --out DIR [--dtype D] [--model DIR]

#include <memory>

#include <fmt/core.h>

#include "app/dtypes.h"
#include "app/hub_names.h"
#include "app/ignore_fields.h"
#include "app/live_line.h"
#include "app/numbers.h"
#include "app/rank.h"
#include "app/verbs.h"
#include "llm/export/export_checkpoint.h"
#include "llm/io/hf_config.h"
#include "llm/setup/chosen_checkpoint.h"
#include "llm/track/step_record.h"
#include "sherd/error.h"

namespace app {

namespace {

int write_export(llm::exports::ExportOptions options, const std::string& run,
                 const std::string& dtype) {
  const std::string& which = options.checkpoint;
  if (run.empty() && (which == "best" || which == "last")) {
    throw sherd::Error(sherd::ExitCode::Usage,
                       fmt::format("--checkpoint {0} selects a checkpoint of a run: give the run "
                                   "too, as in sherd export RUN --checkpoint {0} --out FOLDER",
                                   which));
  }
  if (!run.empty()) {
    const auto chosen = llm::setup::checkpoint_at(run, options.checkpoint, "sherd export");
    for (const std::string& notice : chosen.notices) {
      say(notice);
    }
    options.checkpoint = chosen.folder.string();
  }
  if (!dtype.empty()) {
    options.dtype = dtypes_by_name().at(dtype);
  }
  llm::track::Progress progress(output_for_people());
  HubNames({.progress = &progress}).resolve_model(options.model, "--model");
  const auto outcome = llm::track::with_progress(
      &progress, "exporting", [&] { return llm::exports::export_checkpoint(options); });
  for (const std::string& notice : outcome.notices) {
    say(notice);
  }
  say(fmt::format("exported {} to {}: {} tensors, {}, {}", outcome.checkpoint, options.out,
                  outcome.tensors, llm::track::short_bytes(outcome.file_bytes),
                  llm::io::name_of_dtype(outcome.dtype)));
  return 0;
}

}  // namespace

void add_export(CLI::App& program, Verb& chosen) {
  CLI::App* verb = program.add_subcommand(
      "export", "Write a checkpoint as a Hugging Face folder (weights, config, tokenizer)");
  auto options = std::make_shared<llm::exports::ExportOptions>();
  auto dtype = std::make_shared<std::string>();
  auto run = std::make_shared<std::string>();
  verb->add_option("run", *run, "a run's output folder, or a checkpoint's folder");
  verb->add_option("--checkpoint", options->checkpoint,
                   "checkpoint of the run: best, last, a step or a folder (default: last); without "
                   "RUN: the folder of a checkpoint");
  verb->add_option("--out", options->out, "folder to write")->required();
  verb->add_option("--model", options->model,
                   "source of config and tokenizer (default: the run's model.path)");
  add_ignore_fields(*verb, options->ignored_fields);
  one_of(verb->add_option("--dtype", *dtype, "dtype of the weights (default: the source model's)"),
         dtype_words());
  verb->callback([options, run, dtype, &chosen] {
    if (run->empty() && options->checkpoint.empty()) {
      throw CLI::RequiredError("run");
    }
    chosen = [options, run, dtype] { return write_export(*options, *run, *dtype); };
  });
}

}  // namespace app
