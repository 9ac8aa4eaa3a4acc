#include "llm/data/dataset.h"

#include <algorithm>

#include "sherd/error.h"

namespace llm::data {
namespace {

void count(const Sample& sample, DatasetReport& report) {
  const auto tokens = static_cast<std::int64_t>(sample.ids.size());
  report.samples += 1;
  report.tokens += tokens;
  report.supervised_tokens += tokens - sample.supervised_begin;
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

Dataset load_dataset(const std::filesystem::path& path, const text::PromptEncoder& encoder,
                     std::int64_t limit) {
  Dataset dataset;
  dataset.file = text::read_squad(path);
  dataset.report.name = path.string();
  dataset.report.limits = encoder.limits();
  std::vector<text::SquadQuestion>& questions = dataset.file.questions;
  if (limit > 0 && static_cast<std::size_t>(limit) < questions.size()) {
    questions.resize(static_cast<std::size_t>(limit));
  }
  dataset.samples.reserve(questions.size());
  for (const text::SquadQuestion& question : questions) {
    try {
      dataset.samples.push_back(encoder.encode_labelled(
          question.question, dataset.file.contexts[question.context], question.answers.front()));
    } catch (const sherd::Error& error) {
      throw sherd::Error(error.code(),
                         path.string() + ": question " + question.id + ": " + error.what());
    }
    count(dataset.samples.back(), dataset.report);
  }
  return dataset;
}

}  // namespace llm::data
