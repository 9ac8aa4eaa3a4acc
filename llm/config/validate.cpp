#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>

#include <fmt/core.h>

#include "llm/config/fields.h"
#include "llm/config/run_config.h"
#include "llm/config/words.h"

namespace llm::config {
namespace {

std::string with_value(const std::string& key, std::int64_t value) {
  return fmt::format("{} = {}", key, value);
}

std::string missing(const std::string& key, const Field& field) {
  const std::size_t dot = key.rfind('.');
  const std::string section = key.substr(0, dot);
  const std::size_t bracket = section.find('[');
  const std::string place =
      bracket == std::string::npos ? "[" + section + "]" : "[[" + section.substr(0, bracket) + "]]";
  return fmt::format("{0} is missing: give {1} = \"…\" under {2}, or --{0} …: {3}", key, field.name,
                     place, field.doc);
}

void check_required(RunConfig config, std::vector<Fault>& faults) {
  for (const Field& section : schema(config).fields) {
    for (const Field& field :
         section.table() != nullptr ? section.table()->fields : std::vector<Field>()) {
      const std::string key = section.name + "." + field.name;
      const bool empty_list = field.list() != nullptr && field.list()->size() == 0;
      if (field.required && empty_list) {
        faults.push_back({key, missing(key, field)});
      }
    }
  }
  for (const Leaf& leaf : leaves(config)) {
    if (leaf.field.required && leaf.text() == R"("")") {
      faults.push_back({leaf.key, missing(leaf.key, leaf.field)});
    }
  }
}

void check_batch(const TrainSection& train, std::vector<Fault>& faults) {
  if (!train.micro_batch) {
    return;
  }
  const std::int64_t samples = *train.micro_batch;
  const std::string micro = with_value("train.micro_batch", samples);
  const std::string global = with_value("train.global_batch", train.global_batch);
  if (samples > train.global_batch) {
    faults.push_back({"train.micro_batch", micro + " is larger than " + global});
  } else if (train.global_batch % samples != 0) {
    const auto lower = train.global_batch / samples * samples;
    faults.push_back({"train.global_batch",
                      fmt::format("{} is not a multiple of {}: set train.global_batch = {} or {}",
                                  global, micro, lower, lower + samples)});
  }
}

void check_precision(const PrecisionSection& precision, std::vector<Fault>& faults) {
  if (precision.master != MasterFormat::Float32 && precision.param_dtype == ParamDtype::Float16) {
    faults.push_back({"precision.master",
                      fmt::format("precision.master = \"{}\" is for weights in bfloat16, and "
                                  "precision.param_dtype is \"float16\": set that to \"bfloat16\", "
                                  "or precision.master = \"float32\"",
                                  word_of(precision.master, master_words()))});
  }
}

void check_trainable(const ModelSection& model, std::vector<Fault>& faults) {
  if (!model.trainable.empty() && model.init == Init::Random) {
    faults.push_back({"model.trainable",
                      "model.trainable trains a part of given weights, and model.init = \"random\" "
                      "gives none: leave one of the two out"});
  }
}

void check_quantize(const ModelSection& model, std::vector<Fault>& faults) {
  if (model.quantize != Quantize::None && model.init == Init::Random) {
    faults.push_back({"model.quantize",
                      "model.quantize holds given weights, which stay frozen, and model.init = "
                      "\"random\" gives none: leave one of the two out"});
  }
}

void check_warmup(const RunConfig& config, std::vector<Fault>& faults) {
  const auto steps = config.train.max_steps;
  const auto warmup = config.schedule.warmup.steps;
  if (steps && warmup && *warmup > *steps) {
    faults.push_back({"schedule.warmup", "schedule.warmup = \"" + to_text(Every::steps(*warmup)) +
                                             "\" is more than " +
                                             with_value("train.max_steps", *steps)});
  }
}

void check_lengths(const DataSection& data, std::vector<Fault>& faults) {
  if (data.max_length && data.max_answer_tokens >= *data.max_length) {
    faults.push_back(
        {"data.max_answer_tokens", with_value("data.max_answer_tokens", data.max_answer_tokens) +
                                       " leaves no room for the question in " +
                                       with_value("data.max_length", *data.max_length)});
  }
}

// What is chosen by evaluations needs them, and what is exported a checkpoint.
void check_chat(const DataSection& data, std::vector<Fault>& faults) {
  int year = 0;
  unsigned month = 0;
  unsigned day = 0;
  char end = '\0';
  const int read = std::sscanf(data.date.c_str(), "%4d-%2u-%2u%c", &year, &month, &day, &end);
  const std::chrono::year_month_day date{std::chrono::year(year), std::chrono::month(month),
                                         std::chrono::day(day)};
  if (data.date.size() != 10 || read != 3 || !date.ok()) {
    faults.push_back({"data.date", fmt::format("data.date = \"{}\" is no date: give YYYY-MM-DD, "
                                               "for example \"2026-01-01\"",
                                               data.date)});
  }
  for (const std::string& argument : data.template_arguments) {
    const std::size_t equals = argument.find('=');
    if (equals == 0 || equals == std::string::npos) {
      faults.push_back({"data.template_arguments",
                        fmt::format("data.template_arguments: \"{}\" is no NAME=VALUE, for example "
                                    "\"enable_thinking=false\"",
                                    argument)});
    }
  }
}

void check_best(const RunConfig& config, std::vector<Fault>& faults) {
  const bool evaluates =
      !config.data.eval.empty() && (config.eval.every != Every{} || config.eval.at_end);
  const bool by_answers = config.eval.best_by == BestBy::Em || config.eval.best_by == BestBy::F1;
  if (by_answers && !config.eval.generate) {
    faults.push_back({"eval.best_by",
                      fmt::format("eval.best_by = \"{}\" needs answers: give eval.generate = true",
                                  config.eval.best_by == BestBy::Em ? "em" : "f1")});
  }
  if (config.eval.patience && !evaluates) {
    faults.push_back({"eval.patience", with_value("eval.patience", *config.eval.patience) +
                                           " needs evaluations: give data.eval and eval.every"});
  }
  if (config.checkpoint.export_of == ExportOf::Best && !evaluates) {
    faults.push_back({"checkpoint.export",
                      "checkpoint.export = \"best\" needs evaluations: give data.eval and "
                      "eval.every"});
  }
  if (config.checkpoint.export_of == ExportOf::End && !config.checkpoint.at_end) {
    faults.push_back({"checkpoint.export",
                      "checkpoint.export = \"end\" needs a checkpoint of the last step: give "
                      "checkpoint.at_end = true"});
  }
}

void check_columns(const std::vector<DataSet>& sets, const std::string& key,
                   std::vector<Fault>& faults) {
  for (std::size_t i = 0; i < sets.size(); ++i) {
    const DataColumns& columns = sets[i].columns;
    if (columns.prompt == columns.completion && !columns.prompt.empty()) {
      const std::string both = fmt::format("{}[{}].columns", key, i);
      faults.push_back(
          {both + ".completion",
           fmt::format("{0}.prompt and {0}.completion are both \"{1}\": a record needs "
                       "two columns",
                       both, columns.prompt)});
    }
  }
}

void check_objective(const RunConfig& config, std::vector<Fault>& faults) {
  const bool is_dpo = config.train.objective == Objective::Dpo;
  const auto check_sets = [&](const std::vector<DataSet>& sets, const std::string& name) {
    for (std::size_t i = 0; i < sets.size(); ++i) {
      const std::string key = fmt::format("{}[{}].format", name, i);
      if ((sets[i].format == DataFormat::Preference) != is_dpo) {
        faults.push_back(
            {key, is_dpo
                      ? fmt::format("train.objective = \"dpo\" reads preference pairs: leave {} "
                                    "out, or set it to \"preference\"",
                                    key)
                      : fmt::format("{} = \"preference\" is for train.objective = \"dpo\"", key)});
      }
      if (sets[i].columns.chosen == sets[i].columns.rejected && !sets[i].columns.chosen.empty()) {
        const std::string columns = fmt::format("{}[{}].columns", name, i);
        faults.push_back({columns + ".rejected",
                          fmt::format("{0}.chosen and {0}.rejected are both \"{1}\": a pair needs "
                                      "two columns",
                                      columns, sets[i].columns.chosen)});
      }
    }
  };
  check_sets(config.data.train, "data.train");
  check_sets(config.data.eval, "data.eval");
  if (is_dpo && config.device.cuda_graphs) {
    faults.push_back({"device.cuda_graphs",
                      "device.cuda_graphs replays the loss of supervised training: leave it out "
                      "with train.objective = \"dpo\""});
  }
}

void check_graphs(const RunConfig& config, std::vector<Fault>& faults) {
  if (config.device.cuda_graphs && config.parallel.strategy == Strategy::ShardOptimizer) {
    faults.push_back({"device.cuda_graphs",
                      "device.cuda_graphs frees parameters after each micro-batch, and "
                      "parallel.strategy = \"shard_optimizer\" keeps them: choose "
                      "\"shard_grad_op\", or leave device.cuda_graphs out"});
  }
}

void check_held_out(const DataSection& data, std::vector<Fault>& faults) {
  const bool is_evaluated = std::any_of(data.eval.begin(), data.eval.end(),
                                        [](const DataSet& set) { return set.held_out; });
  if (data.held_out > 0 && !is_evaluated) {
    faults.push_back({"data.held_out",
                      "data.held_out keeps samples from training that no data.eval evaluates: give "
                      "one of them held_out = true, or leave data.eval out"});
  }
  if (data.held_out == 0 && is_evaluated) {
    faults.push_back({"data.held_out",
                      "a data.eval has held_out = true, and nothing is kept from training: give "
                      "data.held_out, such as \"1 %\""});
  }
}

void check_lists(const RunConfig& config, std::vector<Fault>& faults) {
  check_held_out(config.data, faults);
  check_graphs(config, faults);
  if (config.eval.generate && config.data.eval.empty()) {
    faults.push_back(
        {"eval.generate", "eval.generate = true needs questions to answer: give data.eval"});
  }
  check_best(config, faults);
}

// PATTERN=NUMBER, with a number above 0.
void check_patterns(const std::vector<std::string>& patterns, const char* key, bool is_whole,
                    std::vector<Fault>& faults) {
  for (const std::string& entry : patterns) {
    const PatternNumber read = pattern_number(entry);
    const bool fits = read.number > 0 && (!is_whole || read.number == std::floor(read.number));
    if (read.pattern.empty() || !fits) {
      faults.push_back({key, fmt::format("{}: \"{}\" is no PATTERN=NUMBER with {} above 0, for "
                                         "example \"q_proj=16\"",
                                         key, entry, is_whole ? "a whole number" : "a number")});
    }
  }
}

void check_adapter(const RunConfig& config, std::vector<Fault>& faults) {
  const AdapterSection& adapter = config.adapter;
  if (adapter.kind == AdapterKind::None) {
    return;
  }
  if (config.model.init == Init::Random) {
    faults.push_back({"model.init",
                      "an adapter is trained beside given weights, and model.init = \"random\" "
                      "gives none: leave one of the two out"});
  }
  if (!config.model.trainable.empty()) {
    faults.push_back({"model.trainable",
                      "adapter.kind = \"lora\" freezes the model: name modules to train whole in "
                      "adapter.modules_to_save, in place of model.trainable"});
  }
  check_patterns(adapter.rank_pattern, "adapter.rank_pattern", true, faults);
  check_patterns(adapter.alpha_pattern, "adapter.alpha_pattern", false, faults);
  if (adapter.targets.empty() && adapter.path.empty()) {
    faults.push_back(
        {"adapter.targets", "adapter.targets is empty: name linear maps, or give \"all-linear\""});
  }
  if (!adapter.layers.empty() && adapter.targets.names.empty()) {
    faults.push_back(
        {"adapter.layers",
         fmt::format("adapter.layers is for a list of names in adapter.targets, as in PEFT, and "
                     "adapter.targets is \"{}\": give a list such as [\"q_proj\", \"v_proj\"], or "
                     "write the layers into the pattern",
                     adapter.targets.pattern)});
  }
}

void check_sinks(const std::vector<Sink>& sinks, std::vector<Fault>& faults) {
  for (std::size_t i = 0; i < sinks.size(); ++i) {
    for (std::size_t earlier = 0; earlier < i; ++earlier) {
      if (sinks[i].kind == sinks[earlier].kind) {
        faults.push_back({fmt::format("log.sink[{}].kind", i),
                          fmt::format("log.sink[{}] is of the kind that log.sink[{}] has: one of "
                                      "each is enough",
                                      i, earlier)});
      }
    }
  }
}

}  // namespace

PatternNumber pattern_number(const std::string& entry) {
  const std::size_t equals = entry.rfind('=');
  if (equals == std::string::npos) {
    return {};
  }
  return {entry.substr(0, equals),
          number_of(std::string_view(entry).substr(equals + 1)).value_or(0)};
}

const Sink* sink_of(const LogSection& log, SinkKind kind) {
  const auto found = std::find_if(log.sink.begin(), log.sink.end(),
                                  [&](const Sink& sink) { return sink.kind == kind; });
  return found == log.sink.end() ? nullptr : &*found;
}

std::string jsonl_path(const LogSection& log) {
  const Sink* sink = sink_of(log, SinkKind::Jsonl);
  return sink == nullptr ? "" : sink->path;
}

std::vector<Fault> validate(const RunConfig& config) {
  std::vector<Fault> faults;
  check_required(config, faults);
  check_trainable(config.model, faults);
  check_quantize(config.model, faults);
  check_precision(config.precision, faults);
  check_batch(config.train, faults);
  check_objective(config, faults);
  check_warmup(config, faults);
  check_lengths(config.data, faults);
  check_chat(config.data, faults);
  check_lists(config, faults);
  check_adapter(config, faults);
  check_sinks(config.log.sink, faults);
  check_columns(config.data.train, "data.train", faults);
  check_columns(config.data.eval, "data.eval", faults);
  return faults;
}

}  // namespace llm::config
