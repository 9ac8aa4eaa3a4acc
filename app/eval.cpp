// sherd eval --model DIR --data FILE [--limit N] [--json]

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
#include "llm/data/token_cache.h"
#include "llm/eval/evaluator.h"
#include "llm/io/hf_config.h"
#include "llm/train/agreement.h"
#include "llm/train/evaluated_model.h"
#include "llm/train/load_model.h"
#include "llm/train/run_data.h"

namespace app {

namespace {

struct EvalFlags {
  std::string model;
  std::string data;
  std::int64_t limit = 0;
  std::optional<std::int64_t> max_length;         // else the run's; 0: the model's context
  std::optional<std::int64_t> max_answer_tokens;  // else the run's
  std::int64_t batch = 8;
  std::int64_t show = 0;
  std::string dtype;                        // else the run's
  std::vector<std::string> ignored_fields;  // beside the run's
  std::optional<int> ranks;
  bool loss_only = false;
  bool json = false;
};

// The model as the flags want it.
llm::train::EvaluatedModel find_model(const EvalFlags& flags) {
  llm::train::EvaluatedModel found = llm::train::find_evaluated(flags.model);
  auto& ignored = found.ignored_fields.names;
  ignored.insert(ignored.end(), flags.ignored_fields.begin(), flags.ignored_fields.end());
  found.max_length = flags.max_length.value_or(found.max_length);
  found.max_answer_tokens = flags.max_answer_tokens.value_or(found.max_answer_tokens);
  if (!flags.dtype.empty()) {
    found.param_dtype = dtypes_by_name().at(flags.dtype);
  }
  return found;
}

// What must be the same on all ranks.
llm::train::Settings eval_settings(const EvalFlags& flags, const llm::train::EvaluatedModel& source,
                                   const llm::text::Tokenizer& tokenizer,
                                   const llm::data::DataFile& file) {
  const auto config = llm::data::read_data_file(tokenizer.folder() / "config.json");
  return {{"the checkpoint", std::filesystem::path(source.checkpoint).filename().string()},
          {"--limit", std::to_string(flags.limit)},
          {"--max-length", std::to_string(source.max_length)},
          {"--max-answer-tokens", std::to_string(source.max_answer_tokens)},
          {"--batch", std::to_string(flags.batch)},
          {"--dtype", llm::io::name_of_dtype(source.param_dtype)},
          {"--loss-only", flags.loss_only ? "given" : "not given"},
          {"the content of --data (SHA-256)", file.sha256},
          {"the model's tokenizer.json (SHA-256)", llm::data::tokenizer_digest(tokenizer)},
          {"the model's config.json (SHA-256)", config.sha256}};
}

llm::data::Dataset load_data(const llm::data::DataFile& file, std::int64_t limit,
                             const llm::train::EvaluatedModel& source,
                             const llm::text::Tokenizer& tokenizer,
                             const llm::model::CausalLmImpl& model) {
  tokenizer.check_vocabulary(model.vocab_rows());
  const llm::text::PromptEncoder encoder(
      tokenizer, {llm::train::sample_length(source.max_length, model.context_length()),
                  source.max_answer_tokens});
  return llm::data::load_dataset(file, encoder, {.samples = limit});
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
    say(fmt::format("  question:  {}\n  gold:      {}\n  predicted: {}{}\n", p.question, p.gold,
                    p.text, p.exact ? "   (exact)" : ""),
        flags.json);
  }
}

int evaluate(Rank& rank, const EvalFlags& flags) {
  sherd::World world = rank.join();
  const auto tell = [&](const std::string& line) {
    if (rank.is_first() && !line.empty()) {
      say(line, flags.json);
    }
  };
  const auto source = llm::train::read_together(world, [&] { return find_model(flags); });
  const auto tokenizer = llm::train::read_together(
      world, [&] { return llm::train::load_tokenizer(source.model_folder); });
  const auto shape = llm::train::read_together(
      world, [&] { return llm::train::model_shape(source.model_folder, source.ignored_fields); });
  const auto file =
      llm::train::read_together(world, [&] { return llm::data::read_data_file(flags.data); });
  tell(llm::train::agree_on_start(world, llm::train::read_together(world, [&] {
                                    return eval_settings(flags, source, tokenizer, file);
                                  })));
  tell(
      llm::train::length_remark("--max-length", source.max_length, shape.shapes->context_length()));
  const llm::data::Dataset dataset = llm::train::read_together(
      world, [&] { return load_data(file, flags.limit, source, tokenizer, *shape.shapes); });
  if (!source.checkpoint.empty()) {
    tell("checkpoint " + source.checkpoint);
  }
  tell(dataset.report.sentence());
  sherd::ShardOptions options;
  options.precision.param_dtype = source.param_dtype;
  auto model = llm::train::load_evaluated(source, shape, sherd::Mesh::shard(world), options);
  if (world.size() > 1) {
    tell("exchange between ranks: " + world.transport());
  }
  const auto result =
      llm::eval::evaluate(model, dataset, tokenizer, {flags.batch, !flags.loss_only});
  if (rank.is_first()) {
    show(*result, flags);
    if (flags.json) {
      print_json(*result, dataset.report);
    } else {
      say("evaluation: " + llm::eval::evaluation_text(*result, !flags.loss_only));
    }
  }
  return 0;
}

}  // namespace

void add_eval(CLI::App& program, int& exit_code) {
  CLI::App* verb =
      program.add_subcommand("eval", "Loss, exact match and F1 of a model on a SQuAD file");
  auto flags = std::make_shared<EvalFlags>();
  // Bounds that nobody meets are left out of the help.
  const auto whole = CLI::Range(std::int64_t{0}, std::int64_t{1} << 40).description("");
  const auto positive = CLI::Range(std::int64_t{1}, std::int64_t{1} << 40).description("");
  verb->add_option("--model", flags->model,
                   "Hugging Face folder, a run's output folder (its newest "
                   "checkpoint), or a checkpoint's folder")
      ->required();
  verb->add_option("--data", flags->data, "SQuAD v1.1 file")->required();
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
  verb->add_option("--batch", flags->batch, "questions a rank and forward")
      ->capture_default_str()
      ->check(positive);
  verb->add_option("--show", flags->show,
                   "print the first N questions with gold and predicted answers")
      ->check(whole);
  verb->add_option("--dtype", flags->dtype, "of computation (default: the run's, else float32)")
      ->check(CLI::IsMember(dtypes_by_name()));
  verb->add_flag("--loss-only", flags->loss_only, "do not generate answers");
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
