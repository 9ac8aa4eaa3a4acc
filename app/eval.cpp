// sherd eval MODEL|RUN [--data FILE] [--checkpoint best|last|STEP|FOLDER] [--limit N] [--json]

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/core.h>

#include "app/device.h"
#include "app/eval_report.h"
#include "app/flag_words.h"
#include "app/hub_names.h"
#include "app/launch.h"
#include "app/live_line.h"
#include "app/model_flags.h"
#include "app/numbers.h"
#include "app/rank.h"
#include "app/verbs.h"
#include "files/folder.h"
#include "llm/eval/evaluated_model.h"
#include "llm/eval/evaluator.h"
#include "llm/eval/pair_logps.h"
#include "llm/inputs/data_options.h"
#include "llm/inputs/run_data.h"
#include "llm/io/hf_config.h"
#include "llm/setup/agreement.h"
#include "llm/setup/load_model.h"
#include "llm/setup/model_identity.h"
#include "llm/setup/objective.h"
#include "llm/setup/prepared_data.h"
#include "sherd/error.h"

namespace app {

namespace {

struct EvalFlags {
  ModelFlags model;
  std::string data;                               // empty: the run's
  std::string format;                             // empty: the run's, else by the file
  std::vector<std::string> columns;               // prompt and completion; else the run's
  std::string on_bad_sample;                      // empty: the run's, else error
  std::optional<std::int64_t> max_bad_samples;    // else the run's
  std::string chat_template;                      // empty: the run's, else the model's
  std::string on_template_mismatch;               // empty: the run's, else error
  std::string special_tokens_in_text;             // empty: the run's, else error
  std::optional<std::int64_t> limit;              // else the run's, of its own data
  std::optional<std::int64_t> max_length;         // else the run's; 0: the model's context
  std::optional<std::int64_t> max_answer_tokens;  // else the run's
  std::optional<std::int64_t> batch;              // else the run's, else 8
  std::int64_t show = 0;
  std::string predictions;  // folder for the answers; empty: none
  std::optional<int> ranks;
  bool loss_only = false;
  bool json = false;
};

std::map<std::string, llm::config::DataFormat> formats_by_name() {
  using enum llm::config::DataFormat;
  return {{"auto", Auto},         {"squad", Squad},
          {"jsonl", Jsonl},       {"json", Json},
          {"parquet", Parquet},   {"csv", Csv},
          {"chat", Chat},         {"alpaca", Alpaca},
          {"sharegpt", Sharegpt}, {"prompt_completion", PromptCompletion},
          {"text", Text},         {"preference", Preference}};
}

std::map<std::string, llm::config::OnTemplateMismatch> mismatches_by_name() {
  using enum llm::config::OnTemplateMismatch;
  return {{"error", Error}, {"as_rendered", AsRendered}};
}

std::map<std::string, llm::config::SpecialTokensInText> special_tokens_by_name() {
  using enum llm::config::SpecialTokensInText;
  return {{"error", Error}, {"as_text", AsText}};
}

// A file of samples, and how it is read.
struct EvaluatedFile {
  std::string path;
  llm::inputs::FileReading reading;
  llm::inputs::Limit limit;
};

// The data to evaluate, and how to read it.
struct Evaluated {
  llm::eval::EvaluatedModel model;
  std::vector<EvaluatedFile> files;
  llm::config::DataSection data = {};  // how samples are encoded
  std::int64_t batch = 8;
};

// The run's own data, read as the run read it.
std::vector<EvaluatedFile> files_of_run(const std::optional<llm::config::RunConfig>& run,
                                        const EvalFlags& flags) {
  if (!run || run->data.eval.empty()) {
    throw sherd::Error(
        sherd::ExitCode::Usage,
        fmt::format("--data is missing: '{}' is {}. Give a file of questions.", flags.model.model,
                    run ? "a run without data.eval" : "a model, not a run"));
  }
  std::vector<EvaluatedFile> files;
  for (const llm::config::DataSet& set : run->data.eval) {
    files.push_back({set.path, llm::inputs::reading_of(set, run->data),
                     llm::inputs::limit_of(set, run->train)});
  }
  return files;
}

// How files are read, as far as flags set it.
void apply_flags(EvaluatedFile& file, const EvalFlags& flags) {
  if (!flags.format.empty()) {
    file.reading.format = formats_by_name().at(flags.format);
  }
  if (!flags.columns.empty()) {
    file.reading.columns.prompt = flags.columns.front();
    file.reading.columns.completion = flags.columns.back();
  }
  if (!flags.on_bad_sample.empty()) {
    file.reading.bad.skip = flags.on_bad_sample == "skip";
  }
  file.reading.bad.most_skipped = flags.max_bad_samples.value_or(file.reading.bad.most_skipped);
  if (flags.limit) {
    file.limit = {.samples = *flags.limit};
  }
}

// How samples are encoded, as far as flags set it.
llm::config::DataSection encoding_of(const EvalFlags& flags, llm::eval::EvaluatedModel& model) {
  llm::config::DataSection data = model.run ? model.run->data : llm::config::DataSection();
  if (!flags.chat_template.empty()) {
    data.chat_template = flags.chat_template;
    model.chat_template.clear();  // the run's
  }
  if (!flags.on_template_mismatch.empty()) {
    data.on_template_mismatch = mismatches_by_name().at(flags.on_template_mismatch);
  }
  if (!flags.special_tokens_in_text.empty()) {
    data.special_tokens_in_text = special_tokens_by_name().at(flags.special_tokens_in_text);
  }
  return data;
}

// The model and data as the flags want them.
Evaluated find_evaluated(const EvalFlags& flags) {
  Evaluated found{.model = find_model(flags.model), .files = {}};
  llm::eval::EvaluatedModel& model = found.model;
  model.max_length = flags.max_length.value_or(model.max_length);
  model.max_answer_tokens = flags.max_answer_tokens.value_or(model.max_answer_tokens);
  if (flags.data.empty()) {
    found.files = files_of_run(model.run, flags);
  } else {
    const bool are_pairs = model.run && model.run->train.objective == llm::config::Objective::Dpo;
    found.files = {
        {flags.data,
         {.format = are_pairs ? llm::config::DataFormat::Preference : llm::config::DataFormat::Auto,
          .columns = model.columns},
         {}}};
  }
  found.data = encoding_of(flags, model);
  for (EvaluatedFile& file : found.files) {
    apply_flags(file, flags);
  }
  found.batch = flags.batch.value_or(model.run ? model.run->eval.batch : found.batch);
  return found;
}

using DataFiles = std::vector<llm::inputs::Source>;

std::filesystem::path stores_of(const Evaluated& found) {
  return llm::inputs::store_folder(found.model.run ? found.model.run->data.cache : "auto");
}

DataFiles read_files(const Evaluated& found) {
  DataFiles files;
  for (const EvaluatedFile& file : found.files) {
    files.push_back(llm::inputs::open_source(file.path, file.reading,
                                             llm::inputs::digest_folder(stores_of(found))));
  }
  return files;
}

// The loss of preference pairs is that of the run; null: cross-entropy. --format and a run give
// all files of an evaluation pairs, or none.
std::unique_ptr<sherd::Objective> objective_of(const llm::eval::EvaluatedModel& source,
                                               const DataFiles& files, const EvalFlags& flags) {
  const bool are_pairs = std::any_of(files.begin(), files.end(), [](const auto& file) {
    return file.file.reading.format == llm::config::DataFormat::Preference;
  });
  if (!are_pairs) {
    return nullptr;
  }
  auto objective = source.run ? llm::setup::objective_of(*source.run) : nullptr;
  if (!objective) {
    throw sherd::Error(
        sherd::ExitCode::Usage,
        fmt::format("--format preference takes loss and reference from a run with "
                    "train.objective = \"dpo\": '{}' is {}. Evaluate such a run, or the chosen "
                    "answers alone with --format prompt_completion --columns prompt,chosen",
                    flags.model.model, source.run ? "a supervised run" : "a model, not a run"));
  }
  return objective;
}

sherd::ShardOptions shard_options(const llm::eval::EvaluatedModel& source) {
  sherd::ShardOptions options;
  options.precision.param_dtype = source.param_dtype;
  return options;
}

// One line for all files.
template <class Text>
std::string of_each(const Evaluated& found, const Text& text) {
  std::string all;
  for (std::size_t i = 0; i < found.files.size(); ++i) {
    all += (i == 0 ? "" : "; ") + text(i);
  }
  return all;
}

std::string format_name(llm::config::DataFormat format) {
  for (const auto& [name, value] : formats_by_name()) {
    if (value == format) {
      return name;
    }
  }
  return "auto";
}

// Settings that must agree on all ranks.
llm::setup::Settings eval_settings(const EvalFlags& flags, const Evaluated& found,
                                   const DataFiles& files) {
  const auto& source = found.model;
  const auto reading = [&](std::size_t i) { return files[i].file.reading; };
  return {{"the checkpoint", std::filesystem::path(source.checkpoint).filename().string()},
          {"--format", of_each(found, [&](auto i) { return format_name(reading(i).format); })},
          {"--columns", of_each(found,
                                [&](auto i) {
                                  const auto& columns = reading(i).columns;
                                  return columns.prompt + "," + columns.completion;
                                })},
          {"--on-bad-sample",
           of_each(found,
                   [&](auto i) {
                     const auto& bad = reading(i).bad;
                     return bad.skip ? fmt::format("skip, at most {}", bad.most_skipped) : "error";
                   })},
          {"--template", flags.chat_template},
          {"--on-template-mismatch", flags.on_template_mismatch},
          {"--special-tokens-in-text", flags.special_tokens_in_text},
          {"--limit",
           of_each(found, [&](auto i) { return std::to_string(found.files[i].limit.samples); })},
          {"--max-length", std::to_string(source.max_length)},
          {"--max-answer-tokens", std::to_string(source.max_answer_tokens)},
          {"--batch", std::to_string(found.batch)},
          {"--dtype", llm::io::name_of_dtype(source.param_dtype)},
          {"--loss-only", flags.loss_only ? "given" : "not given"},
          {"the content of --data (SHA-256)",
           of_each(found, [&](auto i) { return files[i].file.sha256; })}};
}

// Tokenizes as the run did, with its cache. Collective.
std::vector<llm::inputs::Dataset> load_data(const DataFiles& files, const Evaluated& found,
                                            const llm::text::Tokenizer& tokenizer,
                                            const llm::model::CausalLmImpl& model,
                                            sherd::World& world, llm::track::Progress* progress) {
  const auto& source = found.model;
  const auto encoder = llm::setup::read_on_all_ranks(world, [&] {
    tokenizer.check_vocabulary(model.vocab_rows());
    return llm::inputs::prompt_encoder_of(
        found.data, tokenizer,
        {llm::inputs::sample_length(source.max_length, model.context_length()),
         source.max_answer_tokens},
        source.chat_template);
  });
  const auto say = [&](const std::string& line) {
    if (progress != nullptr) {
      progress->say(line);
    }
  };
  std::vector<llm::inputs::Dataset> datasets;
  for (std::size_t i = 0; i < files.size(); ++i) {
    datasets.push_back(llm::setup::load_dataset_on_ranks(world, files[i], encoder,
                                                         {.folder = stores_of(found)},
                                                         found.files[i].limit, say, progress));
  }
  return datasets;
}

// The log-probabilities of pairs by the run's model before it was trained. That model is gone when
// the run's own is loaded.
void give_reference(std::vector<llm::inputs::Dataset>& datasets, const Evaluated& found,
                    const llm::setup::ModelShape& shape, sherd::World& world,
                    llm::track::Progress* progress) {
  auto model = llm::track::with_progress(progress, "loading the reference model", [&] {
    return llm::eval::load_start(found.model, shape, world, shard_options(found.model));
  });
  for (llm::inputs::Dataset& dataset : datasets) {
    const llm::track::Working working(progress, "reference log-probabilities");
    const auto count = llm::track::counted_in("pairs", progress);
    const auto total = static_cast<std::int64_t>(dataset.samples.size());
    std::vector<llm::inputs::PairLogps> logps;
    static_cast<void>(llm::eval::complete_pair_logps(
        model, dataset.samples,
        {.batch = found.batch,
         .name = dataset.report.name,
         .on_progress = [&](std::int64_t done) { count(done, total); }},
        logps));
    dataset.samples = llm::inputs::with_reference(dataset.samples, std::move(logps));
  }
}

// Rank 0 makes the folder before anything that takes long.
void make_predictions_folder(const EvalFlags& flags, sherd::World& world) {
  llm::setup::on_all_ranks(world, [&] {
    if (world.rank() == 0 && !flags.predictions.empty()) {
      sherd::files::make_folder(flags.predictions);
    }
  });
}

// Evaluates one file after the other; the first rank reports each.
template <class Evaluate>
void evaluate_each(const std::vector<llm::inputs::Dataset>& datasets, const EvalFlags& flags,
                   const Rank& rank, sherd::World& world, const Evaluate& evaluate) {
  const EvalReport report{flags.show, flags.predictions, !flags.loss_only, flags.json};
  std::vector<EvalOutcome> outcomes;
  for (const llm::inputs::Dataset& dataset : datasets) {
    outcomes.push_back({*evaluate(dataset), dataset.report});
    llm::setup::on_all_ranks(world, [&] {
      if (rank.is_first()) {
        report_evaluation(outcomes, datasets.size(), report);
      }
    });
  }
}

// What is known before weights are loaded.
struct Opened {
  Evaluated found;
  llm::text::Tokenizer tokenizer;
  llm::setup::ModelShape shape;
  DataFiles files;
  std::unique_ptr<sherd::Objective> objective;  // null: cross-entropy
};

// Collective.
Opened open_evaluated(const EvalFlags& flags, sherd::World& world) {
  return llm::setup::read_on_all_ranks(world, [&] {
    Evaluated found = find_evaluated(flags);
    auto tokenizer = llm::eval::tokenizer_of(found.model);
    auto shape = llm::eval::shape_of(found.model);
    llm::eval::require_same_model(found.model, shape, tokenizer);
    DataFiles files = read_files(found);
    auto objective = objective_of(found.model, files, flags);
    return Opened{std::move(found), std::move(tokenizer), std::move(shape), std::move(files),
                  std::move(objective)};
  });
}

// Settings that differ between ranks are refused. Collective.
void agree(const Opened& opened, const EvalFlags& flags, sherd::World& world,
           const llm::track::Say& tell) {
  const auto settings = llm::setup::read_on_all_ranks(world, [&] {
    return llm::setup::with_model_identity(eval_settings(flags, opened.found, opened.files),
                                           opened.shape.config, opened.tokenizer);
  });
  tell(llm::setup::agree_on_start(world, settings));
  make_predictions_folder(flags, world);
}

void tell_lengths(const Opened& opened, const llm::track::Say& tell) {
  const std::int64_t length = opened.found.model.max_length;
  tell(llm::inputs::length_remark("--max-length", length, opened.shape.shapes->context_length()));
  tell(llm::setup::rope_remark(opened.shape, length));
}

void tell_evaluated(const llm::eval::EvaluatedModel& source,
                    const std::vector<llm::inputs::Dataset>& datasets,
                    const llm::track::Say& tell) {
  for (const std::string& notice : source.notices) {
    tell(notice);
  }
  if (!source.checkpoint.empty()) {
    tell("checkpoint " + source.checkpoint);
  }
  for (const llm::inputs::Dataset& dataset : datasets) {
    tell(dataset.report.sentence());
    if (const std::string unread = dataset.report.unread.sentence(); !unread.empty()) {
      tell(dataset.report.name + ": " + unread);
    }
  }
}

// The run's model, after its reference where the objective needs one. Collective.
sherd::Sharded<llm::model::CausalLm> load_models(const Opened& opened,
                                                 std::vector<llm::inputs::Dataset>& datasets,
                                                 sherd::World& world,
                                                 llm::track::Progress* progress) {
  const llm::eval::EvaluatedModel& source = opened.found.model;
  if (opened.objective && opened.objective->needs_reference() &&
      !llm::setup::reference_is_base(*source.run)) {
    give_reference(datasets, opened.found, opened.shape, world, progress);
  }
  return llm::track::with_progress(progress, "loading the model", [&] {
    const sherd::ShardOptions options = shard_options(source);
    auto model =
        llm::eval::load_evaluated(source, opened.shape, sherd::Mesh::shard(world), options);
    llm::setup::set_loss_chunk(model, options);
    return model;
  });
}

int evaluate(Rank& rank, EvalFlags flags) {
  const auto progress = progress_of(rank, flags.json);
  auto starting = std::make_unique<llm::track::Working>(progress.get(), "starting");
  HubNames names({.json_on_stdout = flags.json, .progress = progress.get()}, &rank);
  resolve_model(names, flags.model);
  names.resolve_data(flags.data, "--data");
  sherd::World world = rank.join({.device = device_of(rank, flags.model.device)});
  names.require_same(world);
  const llm::track::Say tell = [&](const std::string& line) {
    if (progress && !line.empty()) {
      progress->say(line);
    }
  };
  const Opened opened = open_evaluated(flags, world);
  agree(opened, flags, world, tell);
  tell_lengths(opened, tell);
  std::vector<llm::inputs::Dataset> datasets = load_data(
      opened.files, opened.found, opened.tokenizer, *opened.shape.shapes, world, progress.get());
  tell_evaluated(opened.found.model, datasets, tell);
  auto model = load_models(opened, datasets, world, progress.get());
  starting.reset();
  if (world.size() > 1) {
    tell("exchange between ranks: " + world.transport());
  }
  const llm::eval::EvaluationOptions options{
      .batch = opened.found.batch,
      .generate = !flags.loss_only,
      .stop_ids = llm::eval::stop_ids_of(opened.found.model, opened.tokenizer),
      .objective = opened.objective.get()};
  evaluate_each(datasets, flags, rank, world, [&](const llm::inputs::Dataset& dataset) {
    const auto count =
        llm::track::counted_in(options.objective ? "pairs" : "questions", progress.get());
    const auto total = static_cast<std::int64_t>(dataset.samples.size());
    return llm::track::with_progress(progress.get(), "evaluating", [&] {
      auto of_dataset = options;
      of_dataset.on_progress = [&](std::int64_t done) { count(done, total); };
      return llm::eval::evaluate(model, dataset, opened.tokenizer, of_dataset);
    });
  });
  return 0;
}

// How the data is read.
void add_data_flags(CLI::App& verb, EvalFlags& flags) {
  verb.add_option(
      "--data", flags.data,
      "data file of any format, or a name on a hub (default: each data.eval of the run, "
      "read as in the run)");
  one_of(verb.add_option(
             "--format", flags.format,
             "format of the data: auto, or as data.train.format (default: the run's for its "
             "own data, else auto)"),
         names_in(formats_by_name()));
  one_of(verb.add_option("--on-bad-sample", flags.on_bad_sample,
                         "what to do with a bad sample: error or skip (default: the run's for its "
                         "own data, else error)"),
         {"error", "skip"});
  verb.add_option("--max-bad-samples", flags.max_bad_samples,
                  "most bad samples of a file to skip (default: the run's, else 100)")
      ->check(within(std::int64_t{0}, std::int64_t{1} << 40));
  add_template_flag(verb, flags.chat_template);
  one_of(verb.add_option("--on-template-mismatch", flags.on_template_mismatch,
                         "conversations that the template writes otherwise after a prompt: error "
                         "or as_rendered (default: the run's, else error)"),
         names_in(mismatches_by_name()));
  one_of(verb.add_option("--special-tokens-in-text", flags.special_tokens_in_text,
                         "messages with special tokens: error or as_text (default: the run's, else "
                         "error)"),
         names_in(special_tokens_by_name()));
  verb.add_option("--columns", flags.columns,
                  "names of a record's prompt and completion, as PROMPT,COMPLETION (default: the "
                  "run's, else prompt,completion)")
      ->delimiter(',')
      ->expected(2);
}

}  // namespace

void add_eval(CLI::App& program, Verb& chosen) {
  CLI::App* verb =
      program.add_subcommand("eval", "Evaluate a model on a data file: loss, exact match and F1");
  auto flags = std::make_shared<EvalFlags>();
  // Bounds that nobody meets are left out of the help.
  const auto whole = within(std::int64_t{0}, std::int64_t{1} << 40);
  const auto positive = within(std::int64_t{1}, std::int64_t{1} << 40);
  add_model_flags(*verb, flags->model);
  add_data_flags(*verb, *flags);
  verb->add_option("-n,--ranks", flags->ranks, "ranks to start on this host (default: 1)")
      ->check(within(1, 1024));
  verb->add_option("--limit", flags->limit, "only the first N questions (0: all)")->check(whole);
  verb->add_option("--max-length", flags->max_length,
                   "most tokens of prompt and answer together (0: the model's context; default: "
                   "the run's, else 0)")
      ->check(whole);
  verb->add_option("--max-answer-tokens", flags->max_answer_tokens,
                   "tokens reserved for the answer (default: the run's, else 32)")
      ->check(positive);
  verb->add_option("--batch", flags->batch,
                   "questions per rank and forward pass (default: the run's, else 8)")
      ->check(positive);
  verb->add_option("--show", flags->show,
                   "print the first N questions with gold and predicted answers")
      ->check(whole);
  auto* loss_only =
      verb->add_flag("--loss-only", flags->loss_only, "compute only the loss; generate no answers");
  verb->add_option("--predictions", flags->predictions,
                   "folder for the answers: predictions.json for SQuAD's evaluation script, and "
                   "predictions.jsonl with questions and scores")
      ->excludes(loss_only);
  verb->add_flag("--json", flags->json, "print one line of JSON on standard output");
  verb->callback([verb, flags, &chosen] {
    take_model(flags->model);
    chosen = [flags, words = FlagWords(*verb)] {
      if (const auto code = start_ranks(flags->ranks)) {
        return *code;
      }
      Rank rank(OnSignal::EndProcess);
      return words.run([&] { return rank.run([&] { return evaluate(rank, *flags); }); });
    };
  });
}

}  // namespace app
