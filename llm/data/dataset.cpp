#include "llm/data/dataset.h"

#include <algorithm>

#include "sherd/error.h"

namespace llm::data {
namespace {

void count(const text::LabelledPrompt& sample, DatasetReport& report) {
  const auto tokens = static_cast<std::int64_t>(sample.ids.size());
  report.samples += 1;
  report.tokens += tokens;
  report.supervised_tokens +=
      std::count(sample.supervised.begin(), sample.supervised.end(), std::uint8_t{1});
  report.longest_tokens = std::max(report.longest_tokens, tokens);
  report.contexts_cut += sample.context_was_cut ? 1 : 0;
  report.answers_cut += sample.answer_was_cut ? 1 : 0;
  report.answers_outside += sample.answer_is_outside ? 1 : 0;
}

}  // namespace

std::string DatasetReport::sentence() const {
  return name + ": " + std::to_string(samples) + " questions, " + std::to_string(tokens) +
         " tokens (" + std::to_string(supervised_tokens) + " supervised, longest sample " +
         std::to_string(longest_tokens) + " of at most " +
         std::to_string(limits.max_length_tokens) + "); context cut in " +
         std::to_string(contexts_cut) + ", answer cut to " +
         std::to_string(limits.max_answer_tokens) + " tokens in " + std::to_string(answers_cut) +
         ", answer outside the cut context in " + std::to_string(answers_outside);
}

text::SquadFile read_questions(const std::filesystem::path& path, std::int64_t limit) {
  text::SquadFile file = text::read_squad(path);
  if (limit > 0 && static_cast<std::size_t>(limit) < file.questions.size()) {
    file.questions.resize(static_cast<std::size_t>(limit));
  }
  return file;
}

TokenizedFile tokenize(const text::SquadFile& file, const std::filesystem::path& path,
                       const text::PromptEncoder& encoder) {
  TokenizedFile tokenized;
  tokenized.report.name = path.string();
  tokenized.report.limits = encoder.limits();
  std::vector<text::LabelledPrompt> prompts;
  prompts.reserve(file.questions.size());
  for (const text::SquadQuestion& question : file.questions) {
    try {
      prompts.push_back(encoder.encode_labelled(question.question, file.contexts[question.context],
                                                question.answers.front()));
    } catch (const sherd::Error& error) {
      throw sherd::Error(error.code(),
                         path.string() + ": question " + question.id + ": " + error.what());
    }
    count(prompts.back(), tokenized.report);
  }
  tokenized.samples = Samples(prompts);
  return tokenized;
}

Dataset load_dataset(const std::filesystem::path& path, const text::PromptEncoder& encoder,
                     std::int64_t limit) {
  Dataset dataset{read_questions(path, limit), {}, {}};
  TokenizedFile tokenized = tokenize(dataset.file, path, encoder);
  dataset.samples = std::move(tokenized.samples);
  dataset.report = std::move(tokenized.report);
  return dataset;
}

}  // namespace llm::data
