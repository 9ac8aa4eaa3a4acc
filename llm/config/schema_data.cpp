// The keys of [data]; see schema.cpp.

#include <utility>

#include "llm/config/fields.h"
#include "llm/config/schema_parts.h"
#include "llm/config/words.h"

namespace llm::config {
namespace {

constexpr OnResume fixed_if(bool is_so) {
  return is_so ? OnResume::Fixed : OnResume::Free;
}

Table fields(DataColumns& columns, DataFormat format, bool trains) {
  const bool are_pairs = format == DataFormat::Preference;
  const std::string no_records = no_effect(format == DataFormat::Squad, "the format is squad");
  const std::string idle = are_pairs ? "the format is preference" : no_records;
  const std::string no_pairs = no_effect(!are_pairs, "the format is not preference");
  return {{
      {.name = "prompt",
       .slot = string(columns.prompt),
       .doc = "name of the prompt's field in a record",
       .required = true,
       .on_resume = fixed_if(trains),
       .idle = no_records},
      {.name = "completion",
       .slot = string(columns.completion),
       .doc = "name of the field with the text to learn after the prompt",
       .required = true,
       .on_resume = fixed_if(trains),
       .idle = idle},
      {.name = "messages",
       .slot = string(columns.messages),
       .doc = "name of the field with a conversation's messages",
       .required = true,
       .on_resume = fixed_if(trains),
       .idle = idle},
      {.name = "text",
       .slot = string(columns.text),
       .doc = "name of the field with a text that is learned as a whole",
       .required = true,
       .on_resume = fixed_if(trains),
       .idle = idle},
      {.name = "chosen",
       .slot = string(columns.chosen),
       .doc = "name of the field with the better answer of a preference pair",
       .required = true,
       .on_resume = fixed_if(trains),
       .idle = no_pairs},
      {.name = "rejected",
       .slot = string(columns.rejected),
       .doc = "name of the field with the other answer",
       .required = true,
       .on_resume = fixed_if(trains),
       .idle = no_pairs},
  }};
}

/// The keys of a data file, which must stay the same on resume if the run `trains` on it.
/// `old_limit` is the key that the first one's limit had.
Table fields(DataSet& set, bool trains, const std::string& old_limit) {
  const auto file_order = [](const std::string&) { return std::string("file"); };
  std::vector<OldName> old_limits;
  std::vector<OldName> old_orders;
  if (!old_limit.empty()) {
    old_limits = {{.key = old_limit}};
    old_orders = {{.key = old_limit, .value = file_order}};
  }
  return {{
      {.name = "path",
       .slot = string(set.path),
       .doc = "data file, or several (* matches any characters), or a data set on a hub "
              "([names](fetch.md#data-sets)), downloaded if missing",
       .required = true,
       .of_host = true},
      {.name = "format",
       .slot = choice<DataFormat>(set.format, {{"auto", DataFormat::Auto},
                                               {"squad", DataFormat::Squad},
                                               {"jsonl", DataFormat::Jsonl},
                                               {"json", DataFormat::Json},
                                               {"parquet", DataFormat::Parquet},
                                               {"csv", DataFormat::Csv},
                                               {"chat", DataFormat::Chat},
                                               {"alpaca", DataFormat::Alpaca},
                                               {"sharegpt", DataFormat::Sharegpt},
                                               {"prompt_completion", DataFormat::PromptCompletion},
                                               {"text", DataFormat::Text},
                                               {"preference", DataFormat::Preference}}),
       .doc = "kind of file or records ([formats](data-and-labels.md#formats)); auto looks at the "
              "name's end, the first bytes and the columns, and writes its choice into the run's "
              "config.toml",
       .on_resume = fixed_if(trains),
       .before = "squad"},
      {.name = "limit",
       .slot = integer_or("all", set.limit, at_least(1)),
       .doc = "use only this many questions",
       .unit = "samples",
       .on_resume = fixed_if(trains),
       .old_names = old_limits,
       .old_value = OldValue{"0", "all"}},
      {.name = "limit_order",
       .slot = choice<LimitOrder>(set.limit_order,
                                  {{"random", LimitOrder::Random}, {"file", LimitOrder::File}}),
       .doc = "which questions a limit keeps; random: drawn by train.seed; file: the first ones",
       .on_resume = fixed_if(trains),
       .idle = no_effect(!set.limit, "all questions are used"),
       .old_names = old_orders,
       .before = "file"},
      {.name = "columns", .slot = fields(set.columns, set.format, trains)},
      planned_field("name", "names of data sets in logs"),
      planned_field("template", "templates of prompts"),
      planned_field("supervise", "a choice of what is supervised"),
  }};
}

Table training_fields(DataSet& set, std::size_t i) {
  Table table = fields(set, true, i == 0 ? "data.train_limit" : "");
  table.fields.push_back(
      {.name = "weight",
       .slot = number(set.weight, {.least = 0, .most = 1000, .above_least = true}),
       .doc = "how often an epoch uses each question; with 0.25 each epoch uses the same quarter, "
              "drawn by train.seed",
       .on_resume = OnResume::Fixed});
  return table;
}

Table held_out_fields(DataSet& set, std::size_t i) {
  Table table = fields(set, false, i == 0 ? "data.eval_limit" : "");
  table.fields.push_back(
      {.name = "held_out",
       .slot = flag(set.held_out),
       .doc = "evaluate only the samples that data.held_out keeps from training"});
  return table;
}

}  // namespace

Table data_fields(DataSection& data) {
  return {{
      {.name = "max_length",
       .slot = integer_or("model", data.max_length, at_least(1)),
       .doc = "longest sample, prompt and answer together; longer contexts are cut; model: the "
              "model's context length",
       .unit = "tokens",
       .on_resume = OnResume::Fixed,
       .old_value = OldValue{"0", "model"}},
      {.name = "max_answer_tokens",
       .slot = integer(data.max_answer_tokens, at_least(1)),
       .doc = "tokens reserved for the answer with its end token; also the most that is generated",
       .unit = "tokens",
       .on_resume = OnResume::Fixed},
      {.name = "cache",
       .slot = string(data.cache),
       .doc = "folder that keeps tokenized files for later runs; auto: sherd/tokens in "
              "$XDG_CACHE_HOME or ~/.cache; none: keep nothing",
       .of_host = true,
       .old_value = OldValue{"", "auto"}},
      {.name = "prepare_memory",
       .slot = memory_size(data.prepare_memory),
       .doc = "most memory that tokenizing takes per process, beside the tokenizer's own",
       .of_host = true},
      {.name = "packing",
       .slot = choice<Packing>(data.packing,
                               {{"none", Packing::None}, {"first_fit", Packing::FirstFit}}),
       .doc = "first_fit: samples share rows of at most max_length tokens (pairs: twice as many), "
              "without seeing each other; train.global_batch and train.micro_batch then count rows",
       .on_resume = OnResume::Fixed},
      planned_field("group_by_length", "batches of samples of similar length"),
      {.name = "chat_template",
       .slot = string(data.chat_template),
       .doc = "template of conversations; model: the model's own; else a Jinja file, or chatml, "
              "llama2, llama3, mistral, gemma, zephyr, alpaca",
       .required = true,
       .on_resume = OnResume::Fixed,
       .of_host = true},
      {.name = "template_arguments",
       .slot = strings(data.template_arguments),
       .doc = "variables of the chat template, each NAME=VALUE with a value in JSON or a text: "
              "\"enable_thinking=false\"",
       .on_resume = OnResume::Fixed},
      {.name = "date",
       .slot = string(data.date),
       .doc = "the date that chat templates print, YYYY-MM-DD",
       .required = true,
       .on_resume = OnResume::Fixed},
      {.name = "supervise",
       .slot = choice<Supervise>(
           data.supervise,
           {{"all", Supervise::All}, {"last", Supervise::Last}, {"template", Supervise::Template}}),
       .doc = "what of a conversation is learned; all: each answer; last: the last answer; "
              "template: the generation blocks of the chat template",
       .on_resume = OnResume::Fixed},
      {.name = "on_template_mismatch",
       .slot = choice<OnTemplateMismatch>(
           data.on_template_mismatch,
           {{"error", OnTemplateMismatch::Error}, {"as_rendered", OnTemplateMismatch::AsRendered}}),
       .doc = "what to do if the chat template writes an answer differently after a generation "
              "prompt; error: the sample is bad; as_rendered: learn what follows the common text",
       .on_resume = OnResume::Fixed},
      {.name = "special_tokens_in_text",
       .slot = choice<SpecialTokensInText>(
           data.special_tokens_in_text,
           {{"error", SpecialTokensInText::Error}, {"as_text", SpecialTokensInText::AsText}}),
       .doc = "special tokens in messages of a conversation; error: the sample is bad; as_text: "
              "encode them as ordinary text",
       .on_resume = OnResume::Fixed},
      {.name = "separator",
       .slot = string(data.separator),
       .doc = "text between a record's prompt and its completion; auto: a space, unless there is "
              "white space",
       .on_resume = OnResume::Fixed},
      {.name = "on_bad_sample",
       .slot = choice<OnBadSample>(data.on_bad_sample,
                                   {{"error", OnBadSample::Error}, {"skip", OnBadSample::Skip}}),
       .doc = "error: refuse a file with an unreadable sample; skip: leave such samples out and "
              "list them in train.output/bad_samples.jsonl"},
      {.name = "max_bad_samples",
       .slot = integer(data.max_bad_samples, at_least(0)),
       .doc = "most samples to skip per data set; a data set with more is refused",
       .unit = "samples",
       .idle = no_effect(data.on_bad_sample == OnBadSample::Error, "data.on_bad_sample is error")},
      planned_field("workers", "threads that prepare data"),
      {.name = "held_out",
       .slot = share_or_none(data.held_out),
       .doc = "share of the samples of data.train that is kept from training, and evaluated if "
              "there is no data.eval",
       .on_resume = OnResume::Fixed},
      {.name = "train",
       .slot = list_of(data.train, training_fields, "path"),
       .doc = "Training data. `train = \"f.json\"` or the flag `--data.train f.json` is short for "
              "one file.",
       .required = true},
      {.name = "eval",
       .slot = list_of(data.eval, held_out_fields, "path"),
       .doc = "Evaluation data, each file evaluated separately; without it nothing is evaluated. "
              "`eval = \"f.json\"` is short for one file."},
  }};
}

}  // namespace llm::config
