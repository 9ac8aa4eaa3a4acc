#include "llm/inputs/dataset.h"

#include <algorithm>
#include <atomic>
#include <future>
#include <iterator>
#include <utility>

#include <fmt/core.h>
#include <sched.h>

#include "llm/inputs/unfit.h"
#include "llm/text/chat_encoder.h"
#include "llm/text/record_prompt.h"
#include "sherd/error.h"

namespace llm::inputs {
namespace {

std::size_t usable_cores() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  return ::sched_getaffinity(0, sizeof cores, &cores) == 0
             ? static_cast<std::size_t>(std::max(1, CPU_COUNT(&cores)))
             : 1;
}

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

// The prompts of some questions, and the indices of those that fit in none.
struct Encoded {
  std::vector<text::LabelledPrompt> prompts;
  std::vector<std::int64_t> unfit;
};

// How many of a file's questions are encoded, by all threads together.
class EncodedCount {
 public:
  EncodedCount(const OnEncoded& told, std::size_t total)
      : told_(told), total_(static_cast<std::int64_t>(total)) {}
  void add_one() {
    constexpr std::int64_t kBetween = 64;  // some 20 ms
    const std::int64_t done = ++done_;
    if (told_ && done % kBetween == 0) {
      told_(done, total_);
    }
  }

 private:
  const OnEncoded& told_;
  std::int64_t total_;
  std::atomic<std::int64_t> done_ = 0;
};

// Where questions may be skipped, up to one more than that.
Encoded encode_range(const text::QuestionFile& file, std::size_t begin, std::size_t end,
                     const text::PromptEncoder& encoder, const text::BadSamplePolicy& policy,
                     EncodedCount& encoded) {
  const auto most_unfit =
      static_cast<std::size_t>(policy.skip ? policy.most_skipped : std::ssize(file.questions));
  Encoded part;
  for (std::size_t i = begin; i < end && part.unfit.size() <= most_unfit; ++i) {
    encoded.add_one();
    try {
      for (text::LabelledPrompt& sample : encode_samples(file, i, encoder)) {
        part.prompts.push_back(std::move(sample));
      }
    } catch (const sherd::Error& error) {
      if (error.code() != sherd::ExitCode::BadData) {
        throw;
      }
      part.unfit.push_back(static_cast<std::int64_t>(i));
    }
  }
  return part;
}

// Each thread takes a range of the questions.
Encoded encode_all(const text::QuestionFile& file, const text::PromptEncoder& encoder,
                   const text::BadSamplePolicy& policy, const OnEncoded& on_encoded) {
  constexpr std::size_t kLeastOfAThread = 64;  // below that a thread costs more than it saves
  const std::size_t questions = file.questions.size();
  const std::size_t threads =
      std::clamp<std::size_t>(questions / kLeastOfAThread, 1, usable_cores());
  EncodedCount encoded(on_encoded, questions);
  std::vector<std::future<Encoded>> parts;
  for (std::size_t part = 0; part < threads; ++part) {
    const auto encode = [&, begin = questions * part / threads,
                         end = questions * (part + 1) / threads] {
      return encode_range(file, begin, end, encoder, policy, encoded);
    };
    parts.push_back(std::async(threads == 1 ? std::launch::deferred : std::launch::async, encode));
  }
  for (std::future<Encoded>& part : parts) {
    part.wait();
  }
  Encoded all;
  for (std::future<Encoded>& future : parts) {
    Encoded part = future.get();
    all.unfit.insert(all.unfit.end(), part.unfit.begin(), part.unfit.end());
    std::move(part.prompts.begin(), part.prompts.end(), std::back_inserter(all.prompts));
  }
  return all;
}

}  // namespace

std::string DatasetReport::skipped_text() const {
  return skipped == 0 ? ""
                      : fmt::format("; {} bad sample{} skipped", skipped, skipped == 1 ? "" : "s");
}

std::string DatasetReport::sentence() const {
  std::string text =
      fmt::format("{}: {} {}{}, {} tokens ({} supervised, longest sample {} of at most {})", name,
                  samples, records ? "record" : "question", samples == 1 ? "" : "s", tokens,
                  supervised_tokens, longest_tokens, limits.max_length_tokens);
  std::string cut;
  const auto add = [&cut](const std::string& what, std::int64_t count) {
    if (count > 0) {
      cut += fmt::format("{}{} in {}", cut.empty() ? "; " : ", ", what, count);
    }
  };
  if (records) {
    add("prompt cut", contexts_cut);
    add("completion cut", answers_cut);
  } else {
    add("context cut", contexts_cut);
    add(fmt::format("answer cut to {} tokens", limits.max_answer_tokens), answers_cut);
    add("answer outside the cut context", answers_outside);
  }
  return text + cut + skipped_text();
}

namespace {

// Moves questions that fit in no sample to what was skipped.
void leave_out(const std::vector<std::int64_t>& unfit, text::QuestionFile& questions,
               const DataFile& file, const text::PromptEncoder& encoder) {
  if (unfit.empty()) {
    return;
  }
  questions.skipped = with_unfit(questions, unfit, file, encoder);
  std::vector<text::Question>& all = questions.questions;
  auto next = unfit.begin();
  std::size_t kept = 0;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (next != unfit.end() && *next == static_cast<std::int64_t>(i)) {
      ++next;
    } else if (kept++ != i) {
      all[kept - 1] = std::move(all[i]);
    }
  }
  all.resize(kept);
}

}  // namespace

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

std::vector<text::LabelledPrompt> encode_samples(const text::QuestionFile& file, std::size_t index,
                                                 const text::PromptEncoder& encoder) {
  const text::Question& question = file.questions[index];
  if (question.conversation) {
    return encoder.chat().encode(*question.conversation, encoder.limits().max_length_tokens);
  }
  return {encode_question(file, index, encoder)};
}

text::QuestionFile questions_of(const DataFile& file, const Limit& limit) {
  text::QuestionFile questions = parse_data_file(file);
  std::vector<text::Question>& all = questions.questions;
  const auto count = static_cast<std::size_t>(limit.samples);
  if (count == 0 || count >= all.size()) {
    return questions;
  }
  if (limit.random) {
    std::size_t kept = 0;
    for (const std::size_t index : subset(all.size(), count, limit.seed)) {
      std::swap(all[kept++], all[index]);  // ascending, so that none is moved twice
    }
  }
  all.resize(count);
  return questions;
}

text::QuestionFile questions_of(const DataFile& file, const Limit& limit,
                                const DatasetReport& report, const text::PromptEncoder& encoder) {
  text::QuestionFile questions = questions_of(file, limit);
  leave_out(report.unfit, questions, file, encoder);
  return questions;
}

TokenizedFile tokenize(const text::QuestionFile& questions, const DataFile& file,
                       const text::PromptEncoder& encoder, const OnEncoded& on_encoded) {
  Encoded encoded = encode_all(questions, encoder, file.reading.bad, on_encoded);
  TokenizedFile tokenized;
  tokenized.report.name = file.name;
  tokenized.report.limits = encoder.limits();
  tokenized.report.records = questions.questions.front().is_record();
  tokenized.report.skipped = std::ssize(questions.skipped);
  if (!encoded.unfit.empty()) {
    const auto skipped = with_unfit(questions, encoded.unfit, file, encoder);
    tokenized.report.skipped = std::ssize(skipped);
    if (encoded.prompts.empty()) {
      throw sherd::Error(sherd::ExitCode::BadData,
                         fmt::format("{}: no sample fits in the limits; the last: {}", file.name,
                                     skipped.back().text()));
    }
  }
  for (const text::LabelledPrompt& prompt : encoded.prompts) {
    count(prompt, tokenized.report);
  }
  tokenized.report.unfit = std::move(encoded.unfit);
  tokenized.samples = Samples(encoded.prompts);
  return tokenized;
}

Dataset load_dataset(const DataFile& file, const text::PromptEncoder& encoder, const Limit& limit,
                     const OnEncoded& on_encoded) {
  Dataset dataset{questions_of(file, limit), {}, {}};
  TokenizedFile tokenized = tokenize(dataset.file, file, encoder, on_encoded);
  leave_out(tokenized.report.unfit, dataset.file, file, encoder);
  dataset.samples = std::move(tokenized.samples);
  dataset.report = std::move(tokenized.report);
  return dataset;
}

Dataset load_dataset(const std::filesystem::path& path, const text::PromptEncoder& encoder,
                     const Limit& limit) {
  return load_dataset(read_data_file(path), encoder, limit);
}

}  // namespace llm::inputs
