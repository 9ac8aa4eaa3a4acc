#include "llm/inputs/dataset.h"

#include <algorithm>

#include <fmt/core.h>

#include "llm/text/chat_encoder.h"
#include "llm/text/printable.h"
#include "llm/text/record_prompt.h"
#include "sherd/error.h"

namespace llm::inputs {

ConversationFigures::ConversationFigures(const std::vector<text::LabelledPrompt>& samples) {
  const std::int64_t texts = samples.front().chat_texts;
  const bool is_unrolled = texts > 0 && samples.size() > 1;
  const auto is_any = [&samples](bool text::LabelledPrompt::*is_so) {
    return std::any_of(samples.begin(), samples.end(),
                       [is_so](const text::LabelledPrompt& one) { return one.*is_so; });
  };
  const bool is_apart = is_any(&text::LabelledPrompt::is_apart);
  const bool is_answer_cut = texts > 0 && is_any(&text::LabelledPrompt::answer_was_cut);
  const bool is_cut =
      is_answer_cut || (texts > 0 && is_any(&text::LabelledPrompt::context_was_cut));
  conversations = texts > 0 ? 1 : 0;
  unrolled = is_unrolled ? 1 : 0;
  rewritten = is_unrolled && texts > 1 ? 1 : 0;
  apart = is_unrolled && is_apart ? 1 : 0;
  cut = is_cut ? 1 : 0;
  answers_cut = is_answer_cut ? 1 : 0;
}

void ConversationFigures::add(const ConversationFigures& more) {
  conversations += more.conversations;
  unrolled += more.unrolled;
  rewritten += more.rewritten;
  apart += more.apart;
  cut += more.cut;
  answers_cut += more.answers_cut;
}

void DatasetReport::add(const text::LabelledPrompt& sample) {
  const auto length = static_cast<std::int64_t>(sample.ids.size());
  samples += 1;
  pairs += sample.rejected_begin > 0 ? 1 : 0;
  tokens += length;
  supervised_tokens +=
      std::count(sample.supervised.begin(), sample.supervised.end(), std::uint8_t{1});
  longest_tokens =
      std::max({longest_tokens, sample.rejected_begin, length - sample.rejected_begin});
  const bool is_conversation = sample.chat_texts > 0;
  contexts_cut += sample.context_was_cut && !is_conversation ? 1 : 0;
  answers_cut += sample.answer_was_cut && !is_conversation ? 1 : 0;
  answers_outside += sample.answer_is_outside ? 1 : 0;
}

std::string DatasetReport::skipped_text() const {
  return skipped == 0 ? "" : fmt::format("; {} skipped", text::counted(skipped, "bad sample"));
}

std::string DatasetReport::sentence() const {
  std::string text = fmt::format(
      "{}: {}, {} ({} supervised, longest sample {} of at most {})", name,
      text::counted(samples, pairs > 0 ? "pair"
                             : records ? "record"
                                       : "question"),
      text::counted(tokens, "token"), supervised_tokens, longest_tokens, limits.max_length_tokens);
  std::string cut;
  const auto tell = [&cut](const std::string& what, std::int64_t count) {
    if (count > 0) {
      cut += fmt::format("{}{} in {}", cut.empty() ? "; " : ", ", what, count);
    }
  };
  if (records) {
    tell("prompt cut", contexts_cut);
    tell("completion cut", answers_cut);
    tell("conversation cut at its end", chat.cut);
    tell("answer cut with it", chat.answers_cut);
  } else {
    tell("context cut", contexts_cut);
    tell(fmt::format("answer cut to {} tokens", limits.max_answer_tokens), answers_cut);
    tell("answer outside the cut context", answers_outside);
  }
  return text + cut + skipped_text();
}

text::LabelledPrompt encode_question(const text::QuestionFile& file, std::size_t index,
                                     const text::PromptEncoder& encoder) {
  const text::Question& question = file.questions[index];
  if (question.conversation) {
    throw sherd::Error(sherd::ExitCode::Usage, "conversations need a model with a chat template");
  }
  if (question.is_record()) {
    return text::encode_record(encoder, question.question, question.answers.front().text);
  }
  text::LabelledPrompt prompt = encoder.encode_labelled(
      question.question, file.contexts[question.context], question.answers.front());
  // What has no answer has none that could be outside.
  prompt.answer_is_outside = prompt.answer_is_outside && !question.unanswerable;
  return prompt;
}

namespace {

// One side of a pair. A conversation may make several samples: which of them to compare with which
// nobody could tell.
text::LabelledPrompt encode_side(const text::Question& side, const char* name,
                                 const text::PromptEncoder& encoder) {
  if (!side.conversation) {
    return text::encode_record(encoder, side.question, side.answers.front().text);
  }
  std::vector<text::LabelledPrompt> samples =
      encoder.chat().encode(*side.conversation, encoder.limits().max_length_tokens);
  if (samples.size() > 1) {
    throw sherd::Error(
        sherd::ExitCode::BadData,
        fmt::format("\"{}\" has {} after the prompt, and the chat template needs a text for each; "
                    "a pair compares two texts: data.supervise = \"last\" learns the last answer",
                    name, text::counted(std::ssize(samples), "answer")));
  }
  return std::move(samples.front());
}

text::LabelledPrompt encode_pair(const text::Question& chosen, const text::PromptEncoder& encoder) {
  text::LabelledPrompt pair = encode_side(chosen, "chosen", encoder);
  const text::LabelledPrompt rejected = encode_side(*chosen.rejected, "rejected", encoder);
  if (pair.ids == rejected.ids) {
    throw sherd::Error(
        sherd::ExitCode::BadData,
        fmt::format("\"chosen\" and \"rejected\" are the same tokens{}: a pair without a "
                    "difference teaches nothing",
                    pair.answer_was_cut ? fmt::format(" within data.max_length ({})",
                                                      encoder.limits().max_length_tokens)
                                        : ""));
  }
  pair.rejected_begin = std::ssize(pair.ids);
  pair.ids.insert(pair.ids.end(), rejected.ids.begin(), rejected.ids.end());
  pair.supervised.insert(pair.supervised.end(), rejected.supervised.begin(),
                         rejected.supervised.end());
  pair.context_was_cut |= rejected.context_was_cut;
  pair.cut_bytes = std::max(pair.cut_bytes, rejected.cut_bytes);
  pair.cut_tokens = std::max(pair.cut_tokens, rejected.cut_tokens);
  pair.answer_was_cut |= rejected.answer_was_cut;
  pair.cut_answer_tokens += rejected.cut_answer_tokens;
  pair.is_apart |= rejected.is_apart;
  return pair;
}

}  // namespace

std::vector<text::LabelledPrompt> encode_samples(const text::QuestionFile& file, std::size_t index,
                                                 const text::PromptEncoder& encoder) {
  const text::Question& question = file.questions[index];
  if (question.rejected) {
    return {encode_pair(question, encoder)};
  }
  if (question.conversation) {
    return encoder.chat().encode(*question.conversation, encoder.limits().max_length_tokens);
  }
  return {encode_question(file, index, encoder)};
}

}  // namespace llm::inputs
