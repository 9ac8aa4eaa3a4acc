#include "llm/data/dataset.h"

#include <algorithm>
#include <future>

#include <fmt/core.h>
#include <sched.h>

#include "files/input.h"
#include "files/sha256.h"
#include "sherd/error.h"

namespace llm::data {
namespace {

// A file is held in memory, at about five times its size. SQuAD v1.1's has 30 MB.
constexpr std::uint64_t kMaxFileBytes = std::uint64_t{4} << 30;

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

text::LabelledPrompt encoded(const text::SquadFile& file, std::size_t index,
                             const std::string& name, const text::PromptEncoder& encoder) {
  const text::SquadQuestion& question = file.questions[index];
  try {
    return encoder.encode_labelled(question.question, file.contexts[question.context],
                                   question.answers.front());
  } catch (const sherd::Error& error) {
    throw sherd::Error(error.code(),
                       fmt::format("{}: question {}: {}", name, question.id, error.what()));
  }
}

// Each thread takes a range of the questions. The first error in file order is reported.
std::vector<text::LabelledPrompt> encode_all(const text::SquadFile& file, const std::string& name,
                                             const text::PromptEncoder& encoder) {
  constexpr std::size_t kLeastOfAThread = 64;  // below that a thread costs more than it saves
  const std::size_t questions = file.questions.size();
  const std::size_t threads =
      std::clamp<std::size_t>(questions / kLeastOfAThread, 1, usable_cores());
  std::vector<text::LabelledPrompt> prompts(questions);
  std::vector<std::future<void>> parts;
  for (std::size_t part = 0; part < threads; ++part) {
    const auto encode = [&, begin = questions * part / threads,
                         end = questions * (part + 1) / threads] {
      for (std::size_t i = begin; i < end; ++i) {
        prompts[i] = encoded(file, i, name, encoder);
      }
    };
    parts.push_back(std::async(threads == 1 ? std::launch::deferred : std::launch::async, encode));
  }
  for (std::future<void>& part : parts) {
    part.wait();
  }
  for (std::future<void>& part : parts) {
    part.get();
  }
  return prompts;
}

}  // namespace

std::string DatasetReport::sentence() const {
  return fmt::format(
      "{}: {} questions, {} tokens ({} supervised, longest sample {} of at most {}); context cut "
      "in {}, answer cut to {} tokens in {}, answer outside the cut context in {}",
      name, samples, tokens, supervised_tokens, longest_tokens, limits.max_length_tokens,
      contexts_cut, limits.max_answer_tokens, answers_cut, answers_outside);
}

DataFile read_data_file(const std::filesystem::path& path) {
  DataFile file{path.string(), sherd::files::read_file(path.string(), kMaxFileBytes), {}};
  file.sha256 = sherd::files::sha256_of(file.bytes);
  return file;
}

text::SquadFile questions_of(const DataFile& file, const Limit& limit) {
  text::SquadFile questions = text::parse_squad(file.bytes, file.name);
  std::vector<text::SquadQuestion>& all = questions.questions;
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

TokenizedFile tokenize(const text::SquadFile& file, const std::string& name,
                       const text::PromptEncoder& encoder) {
  TokenizedFile tokenized;
  tokenized.report.name = name;
  tokenized.report.limits = encoder.limits();
  const std::vector<text::LabelledPrompt> prompts = encode_all(file, name, encoder);
  for (const text::LabelledPrompt& prompt : prompts) {
    count(prompt, tokenized.report);
  }
  tokenized.samples = Samples(prompts);
  return tokenized;
}

Dataset load_dataset(const DataFile& file, const text::PromptEncoder& encoder, const Limit& limit) {
  Dataset dataset{questions_of(file, limit), {}, {}};
  TokenizedFile tokenized = tokenize(dataset.file, file.name, encoder);
  dataset.samples = std::move(tokenized.samples);
  dataset.report = std::move(tokenized.report);
  return dataset;
}

Dataset load_dataset(const std::filesystem::path& path, const text::PromptEncoder& encoder,
                     const Limit& limit) {
  return load_dataset(read_data_file(path), encoder, limit);
}

}  // namespace llm::data
