// sherd export RUN|ADAPTER [--checkpoint best|last|STEP] --out DIR|--gguf FILE [--model DIR]

#include <filesystem>
#include <map>
#include <memory>
#include <string>

#include <fmt/core.h>

#include "app/hub_names.h"
#include "app/ignore_fields.h"
#include "app/live_line.h"
#include "app/numbers.h"
#include "app/rank.h"
#include "app/verbs.h"
#include "llm/adapters/peft_config.h"
#include "llm/export/export_checkpoint.h"
#include "llm/export/export_gguf.h"
#include "llm/io/hf_config.h"
#include "llm/io/import.h"
#include "llm/setup/chosen_checkpoint.h"
#include "llm/track/step_record.h"
#include "sherd/error.h"

namespace app {

namespace {

struct ExportFlags {
  llm::exports::ExportOptions options;
  std::string run;
  std::string dtype;
  std::string gguf;
};

// The words of --dtype, as both formats know them.
const std::map<std::string, c10::ScalarType>& dtypes_of_folders() {
  static const std::map<std::string, c10::ScalarType> dtypes = {{"bf16", c10::kBFloat16},
                                                                {"f16", c10::kHalf},
                                                                {"fp16", c10::kHalf},
                                                                {"f32", c10::kFloat},
                                                                {"fp32", c10::kFloat}};
  return dtypes;
}

const std::map<std::string, llm::gguf::FileKind>& kinds_of_gguf() {
  using llm::gguf::FileKind;
  static const std::map<std::string, FileKind> kinds = {
      {"bf16", FileKind::BF16}, {"f16", FileKind::F16},  {"f32", FileKind::F32},
      {"fp16", FileKind::F16},  {"fp32", FileKind::F32}, {"q8_0", FileKind::Q8_0}};
  return kinds;
}

// Puts the checkpoint in place of the run and the choice in it.
void choose_checkpoint(ExportFlags& flags) {
  const std::string& which = flags.options.checkpoint;
  if (flags.run.empty() && (which == "best" || which == "last")) {
    throw sherd::Error(sherd::ExitCode::Usage,
                       fmt::format("--checkpoint {0} selects a checkpoint of a run: give the run "
                                   "too, as in sherd export RUN --checkpoint {0} --out FOLDER",
                                   which));
  }
  if (!flags.run.empty()) {
    const auto chosen = llm::setup::checkpoint_at(flags.run, which, "sherd export");
    for (const std::string& notice : chosen.notices) {
      say(notice);
    }
    flags.options.checkpoint = chosen.folder.string();
  }
}

// The same for the folder of a PEFT adapter. False for another.
bool choose_adapter(ExportFlags& flags) {
  const std::string& folder = flags.run.empty() ? flags.options.checkpoint : flags.run;
  if (!llm::adapters::is_peft_folder(folder)) {
    return false;
  }
  if (!flags.run.empty() && !flags.options.checkpoint.empty()) {
    throw sherd::Error(
        sherd::ExitCode::Usage,
        fmt::format("--checkpoint {} selects a checkpoint of a run: '{}' is a PEFT adapter's "
                    "folder. Leave it out.",
                    flags.options.checkpoint, folder));
  }
  if (!flags.options.merged && flags.gguf.empty()) {
    throw sherd::Error(sherd::ExitCode::Usage,
                       fmt::format("'{}' is the folder of a PEFT adapter already: give --merged "
                                   "for the model with it in its weights, or --gguf",
                                   folder));
  }
  flags.options.checkpoint = folder;
  return true;
}

// Finds what is exported, and the folder of its model where flags, adapter or hub name it.
void choose_source(ExportFlags& flags, llm::track::Progress& progress) {
  std::string revision;
  if (!choose_adapter(flags)) {
    choose_checkpoint(flags);
  } else if (flags.options.model.empty()) {
    const auto config = llm::adapters::read_peft_config(flags.options.checkpoint);
    flags.options.model = llm::adapters::base_folder_of(config);
    revision = config.revision;
  }
  HubNames({.progress = &progress}).resolve_model(flags.options.model, "--model", revision);
}

// True for the folder of a model in place of a run's.
bool is_model_folder(const std::string& folder) {
  return std::filesystem::exists(folder + "/config.json") && llm::io::has_weights(folder);
}

int write_gguf(ExportFlags flags) {
  llm::exports::GgufOptions options{.source = {}, .model_folder = "", .out = flags.gguf};
  if (!flags.dtype.empty()) {
    options.kind = kinds_of_gguf().at(flags.dtype);
  }
  llm::track::Progress progress(output_for_people());
  if (flags.options.checkpoint.empty() && is_model_folder(flags.run)) {
    options.model_folder = flags.run;
  } else {
    choose_source(flags, progress);
  }
  options.source = flags.options;
  const auto outcome = llm::track::with_progress(
      &progress, "exporting", [&] { return llm::exports::export_gguf(options); });
  for (const std::string& notice : outcome.notices) {
    say(notice);
  }
  say(fmt::format("exported {} to {}{}: {} tensors, {}, {}", outcome.source, outcome.file,
                  outcome.modelfile.empty() ? "" : " and " + outcome.modelfile, outcome.tensors,
                  llm::track::short_bytes(outcome.file_bytes),
                  llm::exports::name_of_kind(outcome.kind)));
  return 0;
}

int write_folder(ExportFlags flags) {
  if (flags.dtype == "q8_0") {
    throw sherd::Error(sherd::ExitCode::Usage,
                       "--dtype q8_0 is a type of GGUF files: give --gguf FILE in place of --out");
  }
  llm::exports::ExportOptions& options = flags.options;
  if (!flags.dtype.empty()) {
    options.dtype = dtypes_of_folders().at(flags.dtype);
  }
  llm::track::Progress progress(output_for_people());
  choose_source(flags, progress);
  const auto outcome = llm::track::with_progress(
      &progress, "exporting", [&] { return llm::exports::export_checkpoint(options); });
  for (const std::string& notice : outcome.notices) {
    say(notice);
  }
  say(fmt::format("exported {} to {}: {}{} tensors, {}, {}", outcome.checkpoint, options.out,
                  outcome.is_adapter ? "a PEFT adapter (--merged writes the model), " : "",
                  outcome.tensors, llm::track::short_bytes(outcome.file_bytes),
                  llm::io::name_of_dtype(outcome.dtype)));
  return 0;
}

}  // namespace

void add_export(CLI::App& program, Verb& chosen) {
  CLI::App* verb = program.add_subcommand(
      "export",
      "Write a checkpoint as a Hugging Face folder (weights, config, tokenizer), or as GGUF");
  auto flags = std::make_shared<ExportFlags>();
  llm::exports::ExportOptions& options = flags->options;
  verb->add_option("run", flags->run,
                   "a run's output folder, a checkpoint's, or with --merged or --gguf a PEFT "
                   "adapter's; with --gguf a model's too");
  verb->add_option("--checkpoint", options.checkpoint,
                   "checkpoint of the run: best, last, a step or a folder (default: last); without "
                   "RUN: the folder of a checkpoint");
  auto* out = verb->add_option("--out", options.out, "folder to write");
  verb->add_option("--gguf", flags->gguf,
                   "GGUF file for llama.cpp and Ollama, or folder for it, in place of --out")
      ->excludes(out);
  verb->add_option(
      "--model", options.model,
      "source of config, tokenizer and the weights that were not trained (default: the "
      "run's model.path, or the adapter's base)");
  verb->add_flag(
      "--merged", options.merged,
      "of an adapter, or of a run that trained one: the model with the adapter in its weights, in "
      "place of the adapter");
  add_ignore_fields(*verb, options.ignored_fields);
  one_of(verb->add_option("--dtype", flags->dtype,
                          "dtype of the weights (default: the source model's, of an adapter fp32); "
                          "q8_0: with --gguf"),
         {"bf16", "fp16", "fp32", "f16", "f32", "q8_0"});
  verb->callback([flags, &chosen] {
    if (flags->run.empty() && flags->options.checkpoint.empty()) {
      throw CLI::RequiredError("run");
    }
    if (flags->options.out.empty() && flags->gguf.empty()) {
      throw CLI::RequiredError("--out or --gguf");
    }
    chosen = [flags] { return flags->gguf.empty() ? write_folder(*flags) : write_gguf(*flags); };
  });
}

}  // namespace app
