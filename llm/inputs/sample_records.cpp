#include "llm/inputs/sample_records.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <set>
#include <string>
#include <utility>

#include "llm/inputs/data_options.h"
#include "llm/inputs/dataset.h"
#include "llm/inputs/record_source.h"
#include "llm/inputs/subset.h"
#include "llm/text/chat_encoder.h"
#include "llm/text/conversation.h"

namespace llm::inputs {

namespace {

using nlohmann::ordered_json;

// The samples of a part that stand before one in its store and have the same record.
std::int64_t before_in_record(const TokenStore& store, std::size_t sample) {
  std::int64_t before = 0;
  for (; sample > 0 && store.record(sample - 1) == store.record(sample); --sample) {
    ++before;
  }
  return before;
}

// What a message says, or the tools that it calls.
std::string text_of_message(const ordered_json& message) {
  const auto content = message.find("content");
  if (content != message.end() && content->is_string() &&
      !content->get_ref<const std::string&>().empty()) {
    return content->get<std::string>();
  }
  std::string calls;
  const auto called = message.find("tool_calls");
  if (called != message.end() && called->is_array()) {
    for (const ordered_json& call : *called) {
      const ordered_json& function = call.contains("function") ? call.at("function") : call;
      calls += (calls.empty() ? "calls " : ", ") + function.value("name", std::string("a tool"));
    }
  }
  return calls;
}

// Supervised text without a gap is one answer.
std::int64_t answers_in(const PreviewedSample& sample) {
  return std::count_if(sample.parts.begin(), sample.parts.end(),
                       [](const TextPart& part) { return part.supervised; });
}

std::vector<PreviewedTurn> turns_of(const text::Conversation& conversation) {
  std::vector<PreviewedTurn> turns;
  for (const ordered_json& message : conversation.messages) {
    turns.push_back(
        {.role = message.value("role", std::string()), .text = text_of_message(message)});
  }
  return turns;
}

}  // namespace

SampleRecords::SampleRecords(const OpenData& run, const std::vector<std::int64_t>& samples)
    : run_(run),
      encoder_(
          prompt_encoder_of(run.config.data, run.tokenizer, run.data.parts.front().report.limits)),
      records_(run.data.parts.size()) {
  for (std::size_t part = 0; part < run.data.parts.size(); ++part) {
    const TrainingPart& of_run = run.data.parts[part];
    std::vector<std::int64_t> of_part;
    std::copy_if(samples.begin(), samples.end(), std::back_inserter(of_part), [&](auto sample) {
      return sample >= of_run.first && sample < of_run.first + of_run.samples;
    });
    if (!of_part.empty()) {
      find(part, of_part);
    }
  }
}

void SampleRecords::find(std::size_t part, const std::vector<std::int64_t>& samples) {
  const TrainingPart& of_run = run_.data.parts[part];
  const TokenStore& store = *of_run.store;
  const auto order = weighted(store.size(), run_.config.data.train[part].weight,
                              static_cast<std::uint64_t>(run_.config.train.seed));
  const auto in_store = [&](std::int64_t sample) {
    return order.at(static_cast<std::size_t>(sample - of_run.first));
  };
  std::set<std::int64_t> numbers;
  for (const std::int64_t sample : samples) {
    numbers.insert(store.record(in_store(sample)));
  }
  const Source source = source_of_part(run_.data, part, run_.config);
  records_[part] = records_at(source, numbers);
  for (const std::int64_t sample : samples) {
    const text::QuestionFile& record = records_[part].at(store.record(in_store(sample)));
    found_[sample] = {source.file.files[record.questions.front().file].name,
                      1 + before_in_record(store, in_store(sample)), &record};
  }
}

void SampleRecords::complete(PreviewedSample& sample, std::int64_t index) const {
  const Found& found = found_.at(index);
  const text::Question& question = found.record->questions.front();
  sample.source = found.source;
  sample.number = found.number;
  sample.id = question.id;
  if (question.rejected) {
    return;  // both texts are shown as they are
  }
  if (question.conversation) {
    tell_conversation(sample, question);
  } else {
    tell_cut(sample, *found.record);
  }
}

void SampleRecords::tell_conversation(PreviewedSample& sample,
                                      const text::Question& question) const {
  const text::ChatEncoder& chat = encoder_.chat();
  const text::Conversation& conversation = *question.conversation;
  const auto prompts = chat.encode(conversation, encoder_.limits().max_length_tokens);
  const ConversationFigures figures(prompts);
  sample.unrolling = {std::ssize(prompts), figures.rewritten > 0, figures.apart > 0};
  const text::LabelledPrompt& mine = prompts.at(static_cast<std::size_t>(sample.number - 1));
  sample.turns = turns_of(conversation);
  // Of a sample that was cut, the first answers are left.
  const auto learned = std::min<std::int64_t>(answers_in(sample), std::ssize(mine.turns));
  for (std::int64_t i = 0; i < learned; ++i) {
    const int turn = mine.turns[static_cast<std::size_t>(i)];
    sample.turns.at(static_cast<std::size_t>(turn)).learned = true;
  }
  if (sample.cut.prompt_tokens + sample.cut.answer_tokens == 0) {
    return;
  }
  for (const text::LabelledPrompt& whole :
       chat.encode(conversation, std::numeric_limits<std::int64_t>::max())) {
    if (whole.turns == mine.turns && whole.is_apart == mine.is_apart) {
      sample.cut_text = run_.tokenizer.decode(std::span(whole.ids).subspan(mine.ids.size()), false);
      return;
    }
  }
}

void SampleRecords::tell_cut(PreviewedSample& sample, const text::QuestionFile& record) const {
  const text::Question& question = record.questions.front();
  const auto cut = static_cast<std::size_t>(encode_question(record, 0, encoder_).cut_bytes);
  if (question.is_record()) {
    sample.cut_text = question.question.substr(0, cut);
  } else {
    const std::string& context = record.contexts.front();
    sample.cut_text = context.substr(context.size() - cut);
  }
}

}  // namespace llm::inputs
