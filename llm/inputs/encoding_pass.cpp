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

}  // namespace

DrawnRecords::DrawnRecords(const Source& source, const Limit& limit, std::size_t threads) {
  if (limit.samples == 0 || !limit.random) {
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
  if (limit.samples < total) {
    drawn_.resize(static_cast<std::size_t>(total));
    for (const std::size_t index :
         subset(drawn_.size(), static_cast<std::size_t>(limit.samples), limit.seed)) {
      drawn_[index] = true;
    }
  }
}

bool DrawnRecords::has(const Cursor& cursor, std::int64_t record_of_batch) const {
  return drawn_.empty() || drawn_[static_cast<std::size_t>(
                               before_[static_cast<std::size_t>(cursor.batch)] + record_of_batch)];
}

EncodingPass::EncodingPass(const Source& source, const text::PromptEncoder& encoder,
                           const PrepareOptions& options, const std::filesystem::path& folder,
                           StoreLock* lock)
    : source_(source),
      encode_(record_encoder(encoder)),
      encoder_(encoder),
      options_(options),
      lock_(lock),
      writer_(folder, options.block_bytes,
              [lock, &options](const char* point) {
                if (lock != nullptr) {
                  lock->require_held();
                }
                if (options.at_point) {
                  options.at_point(point);
                }
              }),
      threads_(threads_of(options)),
      most_records_(options.limit.samples > 0 && !options.limit.random
                        ? options.limit.samples
                        : std::numeric_limits<std::int64_t>::max()),
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
  good_ = state.at("good");
  others_ = state.at("others");
  report_ = report_of(state.at("report"));
  bad_ = text::BadSamples(source_.file.name, source_.file.reading.bad,
                          bad_samples_of(state.at("bad"), source_.file));
  bad_.add_untold(state.at("bad_count").get<std::int64_t>() - bad_.count());
}

std::string EncodingPass::state(const Cursor& cursor, std::int64_t next) const {
  return dumped({{"cursor", {cursor.batch, cursor.file, cursor.byte, cursor.number}},
                 {"next", next},
                 {"good", good_},
                 {"others", others_},
                 {"report", json_of(report_)},
                 {"bad", json_of(bad_.kept(), source_.file)},
                 {"bad_count", bad_.count()}});
}

EncodedBatch EncodingPass::encoded(const RecordBatch& batch, const DrawnRecords& drawn) const {
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
    const auto record = static_cast<std::int64_t>(i - parsed.begin);
    if (!drawn.has(batch.cursor, record)) {
      continue;
    }
    const text::Question& question = parsed.questions->questions[i];
    try {
      const std::string text = options_.keeps_records ? text_of(question) : std::string();
      std::vector<text::LabelledPrompt> samples = encode_(*parsed.questions, i);
      ConversationFigures chat(samples);
      for (text::LabelledPrompt& prompt : samples) {
        made.items.push_back({record, std::move(prompt), text, std::exchange(chat, {})});
      }
    } catch (const sherd::Error& error) {
      if (error.code() != sherd::ExitCode::BadData) {
        throw;
      }
      made.items.push_back(
          {.record = record, .unfit = unfit_sample(question, *parsed.file, error.what())});
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
  const DrawnRecords drawn(source_, options_.limit, threads_);
  const std::unique_ptr<RecordSource> records = records_of(source_, begin_);
  OrderedWork<EncodedBatch> work(threads_, batches_of(options_, threads_));
  for (auto next = records->next(); next || !work.is_empty();) {
    if (next && !work.is_full()) {
      work.give([this, &drawn, batch = *next] { return encoded(batch, drawn); });
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
  const std::int64_t first = good_ - batch.good;
  for (auto i = static_cast<std::size_t>(next_item_); i < batch.items.size() && !faults_; ++i) {
    const EncodedBatch::Item& item = batch.items[i];
    const std::int64_t record = first + item.record;
    if (record >= most_records_) {
      break;
    }
    if (item.unfit) {
      add_unfit(item);
      continue;
    }
    if (!source_.file.reading.bad.skip && bad_.count() > 0) {
      continue;  // it will be refused; a later pass that may skip them begins before the first
    }
    writer_.add(item.prompt, record, item.text,
                [&] { return state(batch.cursor, static_cast<std::int64_t>(i)); });
    report_.add(item.prompt);
    report_.chat.add(item.chat);
  }
  parses_only_ = parses_only_ || good_ >= most_records_;
  next_item_ = 0;
  continues_ = false;
}

void EncodingPass::add_faults(EncodedBatch& batch) {
  good_ += batch.good;
  others_ += batch.others;
  report_.records = report_.records || batch.are_records;
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

void EncodingPass::add_unfit(const EncodedBatch::Item& item) {
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
    const std::string unit =
        source_.file.reading.format == config::DataFormat::Parquet ? "row" : "record";
    throw sherd::Error(sherd::ExitCode::BadData,
                       bad_.count() == 0 ? fmt::format("{}: contains no {}s", name, unit)
                                         : fmt::format("{}: contains no good {}; the first: {}",
                                                       name, unit, bad_.first().text()));
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
  writer_.publish(path, dumped({{"report", json_of(report_)},
                                {"skipped", json_of(bad_.kept(), source_.file)}}));
}

}  // namespace llm::inputs
