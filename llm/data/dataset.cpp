#include "llm/data/dataset.h"

#include <algorithm>
#include <future>

#include <fmt/core.h>
#include <sched.h>

#include "files/input.h"
#include "files/sha256.h"
#include "llm/text/record_prompt.h"
#include "llm/text/squad.h"
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

text::LabelledPrompt encoded(const text::QuestionFile& file, std::size_t index,
                             const std::string& name, const text::PromptEncoder& encoder) {
  try {
    return encode_question(file, index, encoder);
  } catch (const sherd::Error& error) {
    const text::Question& question = file.questions[index];
    throw sherd::Error(error.code(),
                       fmt::format("{}: {}{}: {}", name, question.is_record() ? "" : "question ",
                                   question.id, error.what()));
  }
}

// Each thread takes a range of the questions. The first error in file order is reported.
std::vector<text::LabelledPrompt> encode_all(const text::QuestionFile& file,
                                             const std::string& name,
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
  const std::string left_out = skipped == 0 ? "" : fmt::format("; {} bad ones skipped", skipped);
  if (records) {
    return fmt::format(
        "{}: {} records, {} tokens ({} supervised, longest sample {} of at most {}); prompt cut in "
        "{}, completion cut in {}{}",
        name, samples, tokens, supervised_tokens, longest_tokens, limits.max_length_tokens,
        contexts_cut, answers_cut, left_out);
  }
  return fmt::format(
      "{}: {} questions, {} tokens ({} supervised, longest sample {} of at most {}); context cut "
      "in {}, answer cut to {} tokens in {}, answer outside the cut context in {}{}",
      name, samples, tokens, supervised_tokens, longest_tokens, limits.max_length_tokens,
      contexts_cut, limits.max_answer_tokens, answers_cut, answers_outside, left_out);
}

config::DataFormat format_of(const std::string& name, std::string_view bytes) {
  if (name.ends_with(".jsonl") || name.ends_with(".ndjson")) {
    return config::DataFormat::Jsonl;
  }
  constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
  const std::size_t begin = bytes.starts_with(kByteOrderMark) ? kByteOrderMark.size() : 0;
  const std::size_t first = bytes.find_first_not_of(" \t\r\n", begin);
  const bool is_array = first != std::string_view::npos && bytes[first] == '[';
  return is_array ? config::DataFormat::Json : config::DataFormat::Squad;
}

DataFile read_data_file(const std::filesystem::path& path, const FileReading& reading) {
  DataFile file{path.string(), sherd::files::read_file(path.string(), kMaxFileBytes), {}, reading};
  file.sha256 = sherd::files::sha256_of(file.bytes);
  if (reading.format == config::DataFormat::Auto) {
    file.reading.format = format_of(file.name, file.bytes);
  }
  return file;
}

namespace {

text::QuestionFile parsed(const DataFile& file) {
  const FileReading& reading = file.reading;
  switch (reading.format) {
    case config::DataFormat::Jsonl:
      return text::parse_jsonl(file.bytes, file.name, reading.columns, reading.bad);
    case config::DataFormat::Json:
      return text::parse_json_records(file.bytes, file.name, reading.columns, reading.bad);
    default:
      return text::parse_squad(file.bytes, file.name, reading.bad);
  }
}

}  // namespace

text::LabelledPrompt encode_question(const text::QuestionFile& file, std::size_t index,
                                     const text::PromptEncoder& encoder) {
  const text::Question& question = file.questions[index];
  if (question.is_record()) {
    return text::encode_record(encoder, question.question, question.answers.front().text);
  }
  text::LabelledPrompt prompt = encoder.encode_labelled(
      question.question, file.contexts[question.context], question.answers.front());
  // What has no answer has none that could be outside.
  prompt.answer_is_outside = prompt.answer_is_outside && !question.unanswerable;
  return prompt;
}

text::QuestionFile questions_of(const DataFile& file, const Limit& limit) {
  text::QuestionFile questions = parsed(file);
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

TokenizedFile tokenize(const text::QuestionFile& file, const std::string& name,
                       const text::PromptEncoder& encoder) {
  TokenizedFile tokenized;
  tokenized.report.name = name;
  tokenized.report.limits = encoder.limits();
  tokenized.report.records = file.questions.front().is_record();
  tokenized.report.skipped = static_cast<std::int64_t>(file.skipped.size());
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
