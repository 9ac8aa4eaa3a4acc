#include "llm/inputs/sample_records.h"

#include <algorithm>
#include <future>
#include <limits>
#include <string>
#include <thread>
#include <utility>

#include "llm/inputs/data_options.h"
#include "llm/inputs/dataset.h"
#include "llm/inputs/subset.h"
#include "llm/text/chat_encoder.h"
#include "llm/text/conversation.h"

namespace llm::inputs {

namespace {

using nlohmann::ordered_json;

std::size_t part_number(const RunData& data, std::int64_t sample) {
  std::size_t part = 0;
  while (part + 1 < data.parts.size() && sample >= data.parts[part + 1].first) {
    ++part;
  }
  return part;
}

Unrolling unrolling_of(const text::Question& question, const text::PromptEncoder& encoder) {
  if (!question.conversation) {
    return {};
  }
  const text::Conversation& conversation = *question.conversation;
  const auto prompts = encoder.chat().encode(conversation, encoder.limits().max_length_tokens);
  Unrolling unrolling{.samples = std::ssize(prompts)};
  if (prompts.size() > 1) {
    unrolling.rewrites = encoder.chat().samples(conversation).size() > 1;
    unrolling.apart = std::any_of(prompts.begin(), prompts.end(),
                                  [](const text::LabelledPrompt& one) { return one.is_apart; });
  }
  return unrolling;
}

// Each thread takes a range of the questions.
std::vector<Unrolling> unrolling_of_all(const text::QuestionFile& file,
                                        const text::PromptEncoder& encoder) {
  const std::size_t questions = file.questions.size();
  const std::size_t threads = std::max(1U, std::thread::hardware_concurrency());
  std::vector<Unrolling> all(questions);
  std::vector<std::future<void>> ranges;
  for (std::size_t thread = 0; thread < threads; ++thread) {
    ranges.push_back(std::async(std::launch::async, [&, begin = questions * thread / threads,
                                                     end = questions * (thread + 1) / threads] {
      for (std::size_t i = begin; i < end; ++i) {
        all[i] = unrolling_of(file.questions[i], encoder);
      }
    }));
  }
  for (std::future<void>& range : ranges) {
    range.wait();
  }
  for (std::future<void>& range : ranges) {
    range.get();
  }
  return all;
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

SampleRecords::SampleRecords(const OpenData& run)
    : run_(run),
      encoder_(prompt_encoder_of(run.config.data, run.tokenizer,
                                 run.data.parts.front().report.limits)) {}

const SampleRecords::Part& SampleRecords::part(std::size_t number) {
  const auto found = parts_.find(number);
  if (found != parts_.end()) {
    return found->second;
  }
  Part read{questions_of_part(run_.data, number, run_.config, run_.tokenizer), {}, {}};
  // Each question has one sample at least.
  if (std::ssize(read.file.questions) != run_.data.parts[number].report.samples) {
    read.unrolling = unrolling_of_all(read.file, encoder_);
    std::int64_t first = 0;
    for (const Unrolling& one : read.unrolling) {
      read.first_samples.push_back(first);
      first += one.samples;
    }
  }
  return parts_.emplace(number, std::move(read)).first->second;
}

void SampleRecords::complete(PreviewedSample& sample, std::int64_t index) {
  const std::size_t number = part_number(run_.data, index);
  const TrainingPart& of_run = run_.data.parts[number];
  const Part& read = part(number);
  const text::QuestionFile& file = read.file;
  const auto indices = weighted(static_cast<std::size_t>(of_run.report.samples),
                                run_.config.data.train[number].weight,
                                static_cast<std::uint64_t>(run_.config.train.seed));
  std::size_t record = indices.at(static_cast<std::size_t>(index - of_run.first));
  if (!read.first_samples.empty()) {
    const auto in_file = static_cast<std::int64_t>(record);
    const auto next =
        std::upper_bound(read.first_samples.begin(), read.first_samples.end(), in_file);
    record = static_cast<std::size_t>(next - read.first_samples.begin()) - 1;
    sample.number = in_file - read.first_samples[record] + 1;
    sample.unrolling = read.unrolling[record];
  }
  const text::Question& question = file.questions[record];
  sample.source = file.files.empty() ? of_run.report.name : file.files[question.file];
  sample.id = question.id;
  if (question.conversation) {
    tell_conversation(sample, question);
  } else {
    tell_cut(sample, file, record);
  }
}

void SampleRecords::tell_conversation(PreviewedSample& sample,
                                      const text::Question& question) const {
  const text::ChatEncoder& chat = encoder_.chat();
  const text::Conversation& conversation = *question.conversation;
  const auto prompts = chat.encode(conversation, encoder_.limits().max_length_tokens);
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

void SampleRecords::tell_cut(PreviewedSample& sample, const text::QuestionFile& file,
                             std::size_t number) const {
  const text::Question& question = file.questions[number];
  const auto cut = static_cast<std::size_t>(encode_question(file, number, encoder_).cut_bytes);
  if (question.is_record()) {
    sample.cut_text = question.question.substr(0, cut);
  } else {
    const std::string& context = file.contexts[question.context];
    sample.cut_text = context.substr(context.size() - cut);
  }
}

ConversationFigures SampleRecords::conversations_of(std::size_t number) {
  if (run_.data.parts[number].report.conversations == 0) {
    return {};
  }
  const Part& read = part(number);
  ConversationFigures figures;
  figures.conversations =
      std::count_if(read.file.questions.begin(), read.file.questions.end(),
                    [](const text::Question& one) { return one.conversation != nullptr; });
  for (const Unrolling& one : read.unrolling) {
    figures.unrolled += one.samples > 1 ? 1 : 0;
    figures.rewritten += one.samples > 1 && one.rewrites ? 1 : 0;
    figures.apart += one.samples > 1 && one.apart ? 1 : 0;
  }
  return figures;
}

}  // namespace llm::inputs
