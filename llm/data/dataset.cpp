#include "llm/data/dataset.h"

#include <algorithm>
#include <future>
#include <iterator>
#include <utility>

#include <fmt/core.h>
#include <sched.h>

#include "files/input.h"
#include "files/sha256.h"
#include "llm/text/parquet.h"
#include "llm/text/record_prompt.h"
#include "llm/text/squad.h"
#include "llm/text/utf8.h"
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

// A record is known by its line or number, which its id tells: "line 3"; a question by its id.
text::BadSample bad_sample(const text::Question& question, std::string reason) {
  constexpr std::size_t kIdBytes = 1000;
  const std::size_t blank = question.is_record() ? question.id.find(' ') : std::string::npos;
  return {.unit = blank == std::string::npos ? "question" : question.id.substr(0, blank),
          .place = blank == std::string::npos ? std::string(text::start_of(question.id, kIdBytes))
                                              : question.id.substr(blank + 1),
          .reason = std::move(reason)};
}

// The prompts of some questions, and the indices of those that fit in none.
struct Encoded {
  std::vector<text::LabelledPrompt> prompts;
  std::vector<std::int64_t> unfit;
};

// Where questions may be skipped, up to one more than that.
Encoded encode_range(const text::QuestionFile& file, std::size_t begin, std::size_t end,
                     const std::string& name, const text::PromptEncoder& encoder,
                     const text::BadSamplePolicy& policy) {
  Encoded part;
  for (std::size_t i = begin; i < end && std::ssize(part.unfit) <= policy.most_skipped; ++i) {
    try {
      part.prompts.push_back(encode_question(file, i, encoder));
    } catch (const sherd::Error& error) {
      if (!policy.skip || error.code() != sherd::ExitCode::BadData) {
        throw sherd::Error(error.code(),
                           name + ": " + bad_sample(file.questions[i], error.what()).text());
      }
      part.unfit.push_back(static_cast<std::int64_t>(i));
    }
  }
  return part;
}

// Each thread takes a range of the questions. The first error in file order is reported.
Encoded encode_all(const text::QuestionFile& file, const std::string& name,
                   const text::PromptEncoder& encoder, const text::BadSamplePolicy& policy) {
  constexpr std::size_t kLeastOfAThread = 64;  // below that a thread costs more than it saves
  const std::size_t questions = file.questions.size();
  const std::size_t threads =
      std::clamp<std::size_t>(questions / kLeastOfAThread, 1, usable_cores());
  std::vector<std::future<Encoded>> parts;
  for (std::size_t part = 0; part < threads; ++part) {
    const auto encode = [&, begin = questions * part / threads,
                         end = questions * (part + 1) / threads] {
      return encode_range(file, begin, end, name, encoder, policy);
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

// Why a question fits in no sample.
std::string misfit(const text::QuestionFile& file, std::size_t index,
                   const text::PromptEncoder& encoder) {
  try {
    static_cast<void>(encode_question(file, index, encoder));
  } catch (const sherd::Error& error) {
    return error.what();
  }
  return "does not fit";
}

// What was skipped of a file, with the questions that fit in no sample.
std::vector<text::BadSample> all_skipped(const text::QuestionFile& file, const std::string& name,
                                         const std::vector<std::int64_t>& unfit,
                                         const text::PromptEncoder& encoder,
                                         const text::BadSamplePolicy& policy) {
  text::BadSamples bad(name, policy, file.skipped);
  for (const std::int64_t index : unfit) {
    const auto at = static_cast<std::size_t>(index);
    bad.add(bad_sample(file.questions[at], misfit(file, at, encoder)));
  }
  return std::move(bad).skipped();
}

}  // namespace

std::string DatasetReport::skipped_text() const {
  return skipped == 0 ? ""
                      : fmt::format("; {} bad sample{} skipped", skipped, skipped == 1 ? "" : "s");
}

std::string DatasetReport::sentence() const {
  const std::string left_out = skipped_text();
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
  if (name.ends_with(".parquet") || text::is_parquet(bytes)) {
    return config::DataFormat::Parquet;
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
    case config::DataFormat::Parquet:
      return text::parse_parquet(file.bytes, file.name, reading.columns, reading.bad);
    default:
      return text::parse_squad(file.bytes, file.name, reading.bad);
  }
}

// Moves questions that fit in no sample to what was skipped.
void leave_out(const std::vector<std::int64_t>& unfit, text::QuestionFile& questions,
               const DataFile& file, const text::PromptEncoder& encoder) {
  if (unfit.empty()) {
    return;
  }
  questions.skipped = all_skipped(questions, file.name, unfit, encoder, file.reading.bad);
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

text::QuestionFile questions_of(const DataFile& file, const Limit& limit,
                                const DatasetReport& report, const text::PromptEncoder& encoder) {
  text::QuestionFile questions = questions_of(file, limit);
  leave_out(report.unfit, questions, file, encoder);
  return questions;
}

TokenizedFile tokenize(const text::QuestionFile& file, const std::string& name,
                       const text::PromptEncoder& encoder, const text::BadSamplePolicy& policy) {
  Encoded encoded = encode_all(file, name, encoder, policy);
  TokenizedFile tokenized;
  tokenized.report.name = name;
  tokenized.report.limits = encoder.limits();
  tokenized.report.records = file.questions.front().is_record();
  tokenized.report.skipped = std::ssize(file.skipped);
  if (!encoded.unfit.empty()) {
    const auto skipped = all_skipped(file, name, encoded.unfit, encoder, policy);
    tokenized.report.skipped = std::ssize(skipped);
    if (encoded.prompts.empty()) {
      throw sherd::Error(sherd::ExitCode::BadData,
                         fmt::format("{}: no sample fits in the limits; the last: {}", name,
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

Dataset load_dataset(const DataFile& file, const text::PromptEncoder& encoder, const Limit& limit) {
  Dataset dataset{questions_of(file, limit), {}, {}};
  TokenizedFile tokenized = tokenize(dataset.file, file.name, encoder, file.reading.bad);
  leave_out(tokenized.report.unfit, dataset.file, file, encoder);
  dataset.samples = std::move(tokenized.samples);
  dataset.report = std::move(tokenized.report);
  return dataset;
}

Dataset load_dataset(const std::filesystem::path& path, const text::PromptEncoder& encoder,
                     const Limit& limit) {
  return load_dataset(read_data_file(path), encoder, limit);
}

}  // namespace llm::data
