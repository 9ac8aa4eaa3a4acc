#include "llm/inputs/encoding_pass.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <utility>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include "launch/spinning.h"
#include "llm/inputs/store_report.h"
#include "llm/inputs/subset.h"
#include "llm/inputs/unfit.h"
#include "sherd/error.h"

namespace llm::inputs {

namespace {

using nlohmann::json;

// Bytes of a batch, and of what it becomes: records, tokens, marks, texts.
constexpr std::int64_t kMostBatchBytes = std::int64_t{8} << 20;

std::size_t threads_of(const PrepareOptions& options) {
  return options.threads > 0 ? options.threads
                             : static_cast<std::size_t>(sherd::launch::usable_cores());
}

// Batches that are parsed or encoded, or wait to be written.
std::size_t batches_of(const PrepareOptions& options, std::size_t threads) {
  const std::int64_t room = options.memory_bytes / 2 / kMostBatchBytes;
  return std::clamp<std::size_t>(static_cast<std::size_t>(std::max<std::int64_t>(room, 1)), 1,
                                 4 * threads);
}

// As the bad sample that it is, in places of the source.
text::BadSample unfit_of(const ParsedBatch& batch, std::size_t index,
                         const text::PromptEncoder& encoder) {
  DataFile file = {batch.file->name, {}, batch.file->sha256, batch.file->reading, ""};
  text::QuestionFile one;
  one.files = batch.questions->files;
  one.contexts = {""};
  text::Question question = batch.questions->questions[index];
  if (!question.is_record()) {
    one.contexts = {batch.questions->contexts[question.context]};
    question.context = 0;
  }
  file.files = {batch.file->files[question.file]};
  question.file = 0;
  one.questions = {std::move(question)};
  file.reading.bad = {.skip = true, .most_skipped = std::numeric_limits<std::int64_t>::max()};
  return std::move(with_unfit(one, {0}, file, encoder).front());
}

}  // namespace

ChosenRecords::ChosenRecords(const Source& source, const Limit& limit, std::size_t threads) {
  if (limit.samples == 0) {
    return;
  }
  const std::unique_ptr<RecordSource> records = records_of(source, {});
  OrderedWork<std::int64_t> counts(threads, 4 * threads);
  std::int64_t total = 0;
  const auto add_oldest = [&] {
    before_.push_back(total);
    total += counts.take();
  };
  while (const auto batch = records->next()) {
    if (counts.is_full()) {
      add_oldest();
    }
    counts.give([batch = *batch] {
      const ParsedBatch parsed = batch.parse();
      return static_cast<std::int64_t>(parsed.end - parsed.begin);
    });
  }
  while (!counts.is_empty()) {
    add_oldest();
  }
  all_ = limit.samples >= total;
  first_ = limit.samples;
  if (!all_ && limit.random) {
    drawn_.resize(static_cast<std::size_t>(total));
    for (const std::size_t index :
         subset(drawn_.size(), static_cast<std::size_t>(limit.samples), limit.seed)) {
      drawn_[index] = true;
    }
  }
}

bool ChosenRecords::has(const Cursor& cursor, std::int64_t record_of_batch) const {
  if (all_) {
    return true;
  }
  const std::int64_t record = before_[static_cast<std::size_t>(cursor.batch)] + record_of_batch;
  return drawn_.empty() ? record < first_ : drawn_[static_cast<std::size_t>(record)];
}

EncodingPass::EncodingPass(const Source& source, const text::PromptEncoder& encoder,
                           const PrepareOptions& options, const std::filesystem::path& folder,
                           StoreLock* lock)
    : source_(source),
      encode_(record_encoder(encoder)),
      encoder_(encoder),
      options_(options),
      lock_(lock),
      writer_(
          folder, options.block_bytes,
          options.at_point ? options.at_point : [](const char* /*point*/) {}),
      threads_(threads_of(options)),
      bad_(source.file.name, source.file.reading.bad) {
  report_.limits = encoder.limits();
  resume();
}

void EncodingPass::resume() {
  if (writer_.state().empty()) {
    return;
  }
  const json state = json::parse(writer_.state());
  const auto& at = state.at("cursor");
  begin_ = {at.at(0), at.at(1), at.at(2), at.at(3)};
  file_ = begin_.file;
  next_item_ = state.at("next");
  continues_ = true;
  is_complete_ = next_item_ < 0;
  records_ = state.at("records");
  good_ = state.at("good");
  others_ = state.at("others");
  report_ = report_of(state.at("report"));
  bad_ = text::BadSamples(source_.file.name, source_.file.reading.bad,
                          bad_samples_of(state.at("bad")));
  bad_.add_untold(state.at("bad_count").get<std::int64_t>() - bad_.count());
}

std::string EncodingPass::state(const Cursor& cursor, std::int64_t next) const {
  return dumped({{"cursor", {cursor.batch, cursor.file, cursor.byte, cursor.number}},
                 {"next", next},
                 {"records", records_},
                 {"good", good_},
                 {"others", others_},
                 {"report", json_of(report_)},
                 {"bad", json_of(bad_.kept())},
                 {"bad_count", bad_.count()}});
}

EncodedBatch EncodingPass::encoded(const RecordBatch& batch, const ChosenRecords& chosen) const {
  ParsedBatch parsed = batch.parse();
  EncodedBatch made;
  made.cursor = batch.cursor;
  made.done = batch.done;
  made.skipped = std::move(parsed.skipped);
  made.unread = std::move(parsed.unread);
  made.good = static_cast<std::int64_t>(parsed.end - parsed.begin);
  made.others = parsed.others;
  made.are_records = made.good > 0 && parsed.questions->questions[parsed.begin].is_record();
  for (std::size_t i = parsed.begin; i < parsed.end && !parses_only_; ++i) {
    if (!chosen.has(batch.cursor, static_cast<std::int64_t>(i - parsed.begin))) {
      continue;
    }
    const std::int64_t record = made.chosen++;
    try {
      const std::string text =
          options_.keeps_records ? text_of(parsed.questions->questions[i]) : std::string();
      for (text::LabelledPrompt& prompt : encode_(*parsed.questions, i)) {
        made.items.push_back({record, std::move(prompt), text, std::nullopt});
      }
      made.conversations += parsed.questions->questions[i].conversation ? 1 : 0;
    } catch (const sherd::Error& error) {
      if (error.code() != sherd::ExitCode::BadData) {
        throw;
      }
      made.items.push_back({record, {}, {}, unfit_of(parsed, i, encoder_)});
    }
  }
  return made;
}

void EncodingPass::run() {
  if (!is_complete_) {
    encode_all();
  }
  require_unchanged(source_);
  report_.duplicates = writer_.finish_blocks(state(begin_, -1));
}

void EncodingPass::encode_all() {
  const ChosenRecords chosen(source_, options_.limit, threads_);
  const std::unique_ptr<RecordSource> records = records_of(source_, begin_);
  OrderedWork<EncodedBatch> work(threads_, batches_of(options_, threads_));
  for (auto next = records->next(); next || !work.is_empty();) {
    if (next && !work.is_full()) {
      work.give([this, &chosen, batch = *next] { return encoded(batch, chosen); });
      next = records->next();
      continue;
    }
    EncodedBatch batch = work.take();
    const std::int64_t done = batch.done;
    consume(std::move(batch));
    if (lock_ != nullptr) {
      const std::string of =
          records->total() > 0 ? fmt::format(" of {}", records->total()) : std::string();
      lock_->tell(fmt::format("{}{} {}", done, of, records->unit()));
    }
    if (options_.on_progress) {
      options_.on_progress(done, records->total(), records->unit());
    }
  }
  refuse_faults_of_file();
  require_samples();
}

void EncodingPass::consume(EncodedBatch batch) {
  if (batch.cursor.file != file_) {
    refuse_faults_of_file();
    file_ = batch.cursor.file;
  }
  begin_ = batch.cursor;
  if (!continues_) {
    add_faults(batch);
  }
  for (auto i = static_cast<std::size_t>(next_item_); i < batch.items.size() && !faults_; ++i) {
    const EncodedBatch::Item& item = batch.items[i];
    if (item.unfit) {
      add_unfit(item);
      continue;
    }
    if (!source_.file.reading.bad.skip && bad_.count() > 0) {
      continue;  // it will be refused; a later pass that may skip them begins before the first
    }
    writer_.add(item.prompt, item.text,
                [&] { return state(batch.cursor, static_cast<std::int64_t>(i)); });
    count(item.prompt);
  }
  records_ += batch.chosen;
  next_item_ = 0;
  continues_ = false;
}

void EncodingPass::add_faults(EncodedBatch& batch) {
  good_ += batch.good;
  others_ += batch.others;
  report_.records = report_.records || batch.are_records;
  report_.conversations += batch.conversations;
  report_.unread.add(batch.unread);
  for (text::BadSample& sample : batch.skipped) {
    const std::string content = std::exchange(sample.content, {});
    if (source_.file.reading.bad.skip) {
      bad_.add(std::move(sample), content);
      continue;
    }
    if (!faults_) {
      faults_ = std::make_unique<text::BadSamples>(
          source_.file.files[static_cast<std::size_t>(file_)].name, source_.file.reading.bad);
      parses_only_ = true;
    }
    faults_->add(std::move(sample), content);
  }
}

void EncodingPass::count(const text::LabelledPrompt& prompt) {
  const auto tokens = static_cast<std::int64_t>(prompt.ids.size());
  report_.samples += 1;
  report_.tokens += tokens;
  report_.supervised_tokens +=
      std::count(prompt.supervised.begin(), prompt.supervised.end(), std::uint8_t{1});
  report_.longest_tokens = std::max(report_.longest_tokens, tokens);
  report_.contexts_cut += prompt.context_was_cut ? 1 : 0;
  report_.answers_cut += prompt.answer_was_cut ? 1 : 0;
  report_.answers_outside += prompt.answer_is_outside ? 1 : 0;
}

void EncodingPass::add_unfit(const EncodedBatch::Item& item) {
  report_.unfit.push_back(records_ + item.record);
  text::BadSample sample = *item.unfit;
  const std::string content = std::exchange(sample.content, {});
  bad_.add(std::move(sample), content);
}

void EncodingPass::refuse_faults_of_file() {
  if (faults_) {
    static_cast<void>(std::move(*faults_).skipped());
  }
}

void EncodingPass::require_samples() {
  const std::string& name = source_.file.name;
  if (good_ == 0 && others_ > 0) {
    refuse_empty_side(source_.file, others_);
  }
  if (good_ == 0) {
    throw sherd::Error(sherd::ExitCode::BadData,
                       bad_.count() == 0 ? fmt::format("{}: contains no records", name)
                                         : fmt::format("{}: contains no good record; the first: {}",
                                                       name, bad_.first().text()));
  }
  if (!source_.file.reading.bad.skip && bad_.count() > 0) {
    static_cast<void>(std::move(bad_).skipped());
  }
  if (report_.samples == 0) {
    throw sherd::Error(sherd::ExitCode::BadData,
                       fmt::format("{}: no sample fits in the limits; the last: {}", name,
                                   bad_.kept().back().text()));
  }
}

void EncodingPass::publish(const std::filesystem::path& path) {
  report_.skipped = bad_.count();
  writer_.publish(path, dumped({{"report", json_of(report_)}, {"skipped", json_of(bad_.kept())}}));
}

}  // namespace llm::inputs
