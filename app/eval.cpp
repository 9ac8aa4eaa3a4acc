// sherd eval MODEL|RUN [--data FILE] [--checkpoint best|last|STEP] [--limit N] [--json]

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include "app/dtypes.h"
#include "app/ignore_fields.h"
#include "app/launch.h"
#include "app/rank.h"
#include "app/verbs.h"
#include "files/folder.h"
#include "llm/data/token_cache.h"
#include "llm/eval/evaluator.h"
#include "llm/io/hf_config.h"
#include "llm/train/agreement.h"
#include "llm/train/evaluated_model.h"
#include "llm/train/load_model.h"
#include "llm/train/options_of_config.h"
#include "llm/train/prediction_files.h"
#include "llm/train/run_data.h"
#include "sherd/error.h"

namespace app {

namespace {

struct EvalFlags {
  std::string model;
  std::string checkpoint;                         // of a run; empty: the newest
  std::string data;                               // empty: the run's
  std::vector<std::string> columns;               // prompt and completion; else the run's
  std::optional<std::int64_t> limit;              // else the run's, of its own data
  std::optional<std::int64_t> max_length;         // else the run's; 0: the model's context
  std::optional<std::int64_t> max_answer_tokens;  // else the run's
  std::optional<std::int64_t> batch;              // else the run's, else 8
  std::int64_t show = 0;
  std::string predictions;                  // folder for the answers; empty: none
  std::string dtype;                        // else the run's
  std::vector<std::string> ignored_fields;  // beside the run's
  std::optional<int> ranks;
  bool loss_only = false;
  bool json = false;
};

// What is evaluated, and how.
struct Evaluated {
  llm::train::EvaluatedModel model;
  std::string data;
  llm::data::Limit limit;
  std::int64_t batch = 8;
};

// The run's own data, where it has any.
void take_data_of_run(Evaluated& found, const EvalFlags& flags) {
  const auto& run = found.model.run;
  if (!run || run->data.eval.empty()) {
    throw sherd::Error(
        sherd::ExitCode::Usage,
        fmt::format("--data is missing: '{}' is {}. Give a file of questions.", flags.model,
                    run ? "a run without data.eval" : "a model, not a run"));
  }
  const llm::config::DataSet& set = run->data.eval.front();
  found.data = set.path;
  found.limit = llm::train::limit_of(set, run->train);
}

// The model and data as the flags want them.
Evaluated find_evaluated(const EvalFlags& flags) {
  Evaluated found{llm::train::find_evaluated(flags.model, flags.checkpoint), flags.data, {}};
  llm::train::EvaluatedModel& model = found.model;
  auto& ignored = model.ignored_fields.names;
  ignored.insert(ignored.end(), flags.ignored_fields.begin(), flags.ignored_fields.end());
  model.max_length = flags.max_length.value_or(model.max_length);
  model.max_answer_tokens = flags.max_answer_tokens.value_or(model.max_answer_tokens);
  if (!flags.columns.empty()) {
    model.columns = {flags.columns.front(), flags.columns.back()};
  }
  if (!flags.dtype.empty()) {
    model.param_dtype = dtypes_by_name().at(flags.dtype);
  }
  if (found.data.empty()) {
    take_data_of_run(found, flags);
  }
  if (flags.limit) {
    found.limit = {.samples = *flags.limit};
  }
  found.batch = flags.batch.value_or(model.run ? model.run->eval.batch : found.batch);
  return found;
}

// What must be the same on all ranks.
llm::train::Settings eval_settings(const EvalFlags& flags, const Evaluated& found,
                                   const llm::text::Tokenizer& tokenizer,
                                   const llm::data::DataFile& file) {
  const auto& source = found.model;
  const auto config = llm::data::read_data_file(tokenizer.folder() / "config.json");
  return {{"the checkpoint", std::filesystem::path(source.checkpoint).filename().string()},
          {"--columns", source.columns.prompt + "," + source.columns.completion},
          {"--limit", std::to_string(found.limit.samples)},
          {"--max-length", std::to_string(source.max_length)},
          {"--max-answer-tokens", std::to_string(source.max_answer_tokens)},
          {"--batch", std::to_string(found.batch)},
          {"--dtype", llm::io::name_of_dtype(source.param_dtype)},
          {"--loss-only", flags.loss_only ? "given" : "not given"},
          {"the content of --data (SHA-256)", file.sha256},
          {"the model's tokenizer.json (SHA-256)", llm::data::tokenizer_digest(tokenizer)},
          {"the model's config.json (SHA-256)", config.sha256}};
}

llm::data::Dataset load_data(const llm::data::DataFile& file, const Evaluated& found,
                             const llm::text::Tokenizer& tokenizer,
                             const llm::model::CausalLmImpl& model) {
  const auto& source = found.model;
  tokenizer.check_vocabulary(model.vocab_rows());
  const llm::text::PromptEncoder encoder(
      tokenizer, {llm::train::sample_length(source.max_length, model.context_length()),
                  source.max_answer_tokens});
  return llm::data::load_dataset(file, encoder, found.limit);
}

void print_json(const llm::eval::EvaluationResult& result, const llm::data::DatasetReport& report) {
  const nlohmann::ordered_json line = {{"loss", result.loss},
                                       {"em", result.em},
                                       {"f1", result.f1},
                                       {"samples", result.samples},
                                       {"samples_per_second", result.samples_per_second()},
                                       {"seconds", result.seconds},
                                       {"supervised_tokens", result.supervised_tokens},
                                       {"contexts_cut", report.contexts_cut},
                                       {"answers_cut", report.answers_cut},
                                       {"answers_outside", report.answers_outside}};
  say(line.dump());
}

void show(const llm::eval::EvaluationResult& result, const EvalFlags& flags) {
  const auto count =
      std::min<std::int64_t>(flags.show, static_cast<std::int64_t>(result.predictions.size()));
  for (std::int64_t i = 0; i < count; ++i) {
    const auto& p = result.predictions[static_cast<size_t>(i)];
    say(fmt::format("  question:  {}\n  gold:      {}\n  predicted: {}{}\n", p.question,
                    p.gold.front(), p.text, p.score.exact_match == 1.0 ? "   (exact)" : ""),
        flags.json);
  }
}

// Rank 0 makes the folder before anything that takes long.
void make_predictions_folder(const EvalFlags& flags, sherd::World& world) {
  llm::train::together(world, [&] {
    if (world.rank() == 0 && !flags.predictions.empty()) {
      sherd::files::make_folder(flags.predictions);
    }
  });
}

// What rank 0 leaves and prints.
void report(const llm::eval::EvaluationResult& result, const llm::data::DatasetReport& data,
            const EvalFlags& flags) {
  show(result, flags);
  if (!flags.predictions.empty()) {
    llm::train::write_predictions(flags.predictions, "predictions", result.predictions);
  }
  if (flags.json) {
    print_json(result, data);
  } else {
    say("evaluation: " + llm::eval::evaluation_text(result, !flags.loss_only));
  }
}

int evaluate(Rank& rank, const EvalFlags& flags) {
  sherd::World world = rank.join();
  const auto tell = [&](const std::string& line) {
    if (rank.is_first() && !line.empty()) {
      say(line, flags.json);
    }
  };
  const auto found = llm::train::read_together(world, [&] { return find_evaluated(flags); });
  const llm::train::EvaluatedModel& source = found.model;
  const auto tokenizer = llm::train::read_together(
      world, [&] { return llm::train::load_tokenizer(source.model_folder); });
  const auto shape = llm::train::read_together(
      world, [&] { return llm::train::model_shape(source.model_folder, source.ignored_fields); });
  const auto file = llm::train::read_together(
      world, [&] { return llm::data::read_data_file(found.data, {.columns = source.columns}); });
  tell(llm::train::agree_on_start(world, llm::train::read_together(world, [&] {
                                    return eval_settings(flags, found, tokenizer, file);
                                  })));
  make_predictions_folder(flags, world);
  tell(
      llm::train::length_remark("--max-length", source.max_length, shape.shapes->context_length()));
  const llm::data::Dataset dataset = llm::train::read_together(
      world, [&] { return load_data(file, found, tokenizer, *shape.shapes); });
  if (!source.checkpoint.empty()) {
    tell("checkpoint " + source.checkpoint);
  }
  tell(dataset.report.sentence());
  if (flags.data.empty() && source.run->data.eval.size() > 1) {
    tell("the run's other data.eval are not evaluated: give one with --data");
  }
  sherd::ShardOptions options;
  options.precision.param_dtype = source.param_dtype;
  auto model = llm::train::load_evaluated(source, shape, sherd::Mesh::shard(world), options);
  if (world.size() > 1) {
    tell("exchange between ranks: " + world.transport());
  }
  const auto result =
      llm::eval::evaluate(model, dataset, tokenizer, {found.batch, !flags.loss_only});
  llm::train::together(world, [&] {
    if (rank.is_first()) {
      report(*result, dataset.report, flags);
    }
  });
  return 0;
}

}  // namespace

void add_eval(CLI::App& program, int& exit_code) {
  CLI::App* verb =
      program.add_subcommand("eval", "Loss, exact match and F1 of a model on a data file");
  auto flags = std::make_shared<EvalFlags>();
  // Bounds that nobody meets are left out of the help.
  const auto whole = CLI::Range(std::int64_t{0}, std::int64_t{1} << 40).description("");
  const auto positive = CLI::Range(std::int64_t{1}, std::int64_t{1} << 40).description("");
  verb->add_option("model,--model", flags->model,
                   "Hugging Face folder, a run's output folder, or a checkpoint's folder")
      ->required();
  verb->add_option("--checkpoint", flags->checkpoint,
                   "of a run: best, last or a step (default: last)");
  verb->add_option("--data", flags->data,
                   "SQuAD file, or JSON lines (.jsonl) or an array of prompts and completions "
                   "(default: the run's first data.eval, with its limit)");
  verb->add_option("--columns", flags->columns,
                   "names of a record's prompt and completion, as PROMPT,COMPLETION (default: the "
                   "run's, else prompt,completion)")
      ->delimiter(',')
      ->expected(2);
  add_ignore_fields(*verb, flags->ignored_fields);
  verb->add_option("-n,--ranks", flags->ranks, "ranks of this host to start (default: 1)")
      ->check(CLI::Range(1, 1024));
  verb->add_option("--limit", flags->limit, "only the first N questions (0: all)")->check(whole);
  verb->add_option(
          "--max-length", flags->max_length,
          "tokens of prompt and answer (0: the model's context; default: the run's, else 0)")
      ->check(whole);
  verb->add_option("--max-answer-tokens", flags->max_answer_tokens,
                   "tokens kept for the answer (default: the run's, else 32)")
      ->check(positive);
  verb->add_option("--batch", flags->batch,
                   "questions a rank and forward (default: the run's, else 8)")
      ->check(positive);
  verb->add_option("--show", flags->show,
                   "print the first N questions with gold and predicted answers")
      ->check(whole);
  verb->add_option("--dtype", flags->dtype, "of computation (default: the run's, else float32)")
      ->check(CLI::IsMember(dtypes_by_name()));
  auto* loss_only = verb->add_flag("--loss-only", flags->loss_only, "do not generate answers");
  verb->add_option("--predictions", flags->predictions,
                   "folder for the answers: predictions.json, as SQuAD's evaluation script reads "
                   "it, and predictions.jsonl with questions and scores")
      ->excludes(loss_only);
  verb->add_flag("--json", flags->json, "one line of JSON on standard output");
  verb->callback([flags, &exit_code] {
    const auto code = start_ranks(flags->ranks);
    if (code) {
      exit_code = *code;
      return;
    }
    Rank rank(OnSignal::EndProcess);
    exit_code = rank.run([&] { return evaluate(rank, *flags); });
  });
}

}  // namespace app
