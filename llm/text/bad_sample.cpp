#include "llm/text/bad_sample.h"

#include <utility>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include "llm/text/printable.h"
#include "llm/text/utf8.h"
#include "sherd/error.h"

namespace llm::text {

namespace {

constexpr std::size_t kMostContentBytes = std::size_t{4} << 10;    // of a sample
constexpr std::size_t kMostContentsBytes = std::size_t{64} << 20;  // of a file's samples
constexpr std::size_t kMostReasonBytes = 1000;
constexpr std::size_t kSameReasonBytes = 60;  // a longer one is told once where faults repeat it

}  // namespace

std::string BadSample::text() const {
  return printable((unit == "place" ? place : unit + " " + place) +
                   (line ? fmt::format(", line {}", *line) : "") +
                   (byte ? fmt::format(", byte {}", *byte) : "") + ": " + reason);
}

void FaultList::add(std::string fault) {
  ++count_;
  if (told_.size() < kMostTold) {
    told_.push_back(std::move(fault));
  }
}

std::string FaultList::text() const {
  if (count_ == 1) {
    return told_.front();
  }
  std::string text = fmt::format("{} faults", count_);
  for (const std::string& fault : told_) {
    text += "\n  " + fault;
  }
  const auto left = count_ - static_cast<std::int64_t>(told_.size());
  return left == 0 ? text : text + fmt::format("\n  and {} more", left);
}

BadSamples::BadSamples(std::string name, const BadSamplePolicy& policy,
                       std::vector<BadSample> earlier)
    : name_(std::move(name)),
      policy_(policy),
      count_(static_cast<std::int64_t>(earlier.size())),
      kept_(std::move(earlier)) {}

void BadSamples::add(BadSample sample, std::string_view content) {
  ++count_;
  if (!policy_.skip && kept_.size() >= FaultList::kMostTold) {
    return;
  }
  if (sample.source.empty()) {
    sample.source = name_;
  }
  if (sample.reason.size() > kMostReasonBytes) {
    sample.reason = std::string(start_of(sample.reason, kMostReasonBytes)) + "…";
  }
  if (content.size() <= kMostContentBytes && content_bytes_ < kMostContentsBytes &&
      !first_byte_without_utf8(content)) {
    sample.content = content;
    content_bytes_ += content.size();
  }
  kept_.push_back(std::move(sample));
  if (policy_.skip && count_ > policy_.most_skipped) {
    throw sherd::Error(
        sherd::ExitCode::BadData,
        fmt::format("{}: {} more than data.max_bad_samples = {} allows to skip, "
                    "and the rest of the file was not read; the first: {}",
                    name_,
                    count_ == 1 ? "1 bad sample is" : fmt::format("{} bad samples are", count_),
                    policy_.most_skipped, told(kept_.front())));
  }
}

std::string BadSamples::told(const BadSample& sample) const {
  return (sample.source == name_ ? "" : printable(sample.source) + ": ") + sample.text();
}

std::vector<BadSample> BadSamples::skipped() && {
  if (policy_.skip || count_ == 0) {
    return std::move(kept_);
  }
  FaultList faults;
  for (std::size_t i = 0; i < kept_.size(); ++i) {
    const std::string& reason = kept_[i].reason;
    BadSample sample = kept_[i];
    if (i > 0 && reason == kept_[i - 1].reason && reason.size() > kSameReasonBytes) {
      sample.reason = "the same";
    }
    faults.add(told(sample));
  }
  faults.add_untold(count_ - faults.count());
  throw sherd::Error(sherd::ExitCode::BadData, name_ + ": " + faults.text() + advice_to_skip());
}

std::string advice_to_skip() {
  return "\nCorrect the file, or give data.on_bad_sample = \"skip\" to leave bad samples out.";
}

std::string to_jsonl(const std::vector<BadSample>& bad) {
  std::string text;
  for (const BadSample& sample : bad) {
    nlohmann::ordered_json line = {{"source", sample.source}};
    const bool is_number = sample.unit != "place" && sample.unit != "question";
    if (is_number) {
      line[sample.unit] = std::stoll(sample.place);
    } else {
      line[sample.unit] = sample.place;
    }
    if (sample.line) {
      line["line"] = *sample.line;
    }
    if (sample.byte) {
      line["byte"] = *sample.byte;
    }
    line["reason"] = sample.reason;
    if (!sample.content.empty()) {
      line["text"] = sample.content;
    }
    text += line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
  }
  return text;
}

}  // namespace llm::text
