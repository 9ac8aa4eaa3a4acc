#include "llm/text/bad_sample.h"

#include <algorithm>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include "sherd/error.h"

namespace llm::text {

namespace {

constexpr std::size_t kFaultsTold = 20;

}  // namespace

std::string BadSample::text() const {
  const std::string at = unit == "place" ? place : unit + " " + place;
  return at + (byte ? fmt::format(", byte {}", *byte) : "") + ": " + reason;
}

std::string listed(const std::vector<std::string>& faults) {
  if (faults.size() == 1) {
    return faults.front();
  }
  std::string text = fmt::format("{} faults", faults.size());
  for (std::size_t i = 0; i < std::min(faults.size(), kFaultsTold); ++i) {
    text += "\n  " + faults[i];
  }
  return faults.size() <= kFaultsTold
             ? text
             : text + fmt::format("\n  and {} more", faults.size() - kFaultsTold);
}

void refuse_unless_skipped(const std::vector<BadSample>& bad, const std::string& name,
                           const BadSamplePolicy& policy) {
  if (bad.empty()) {
    return;
  }
  if (policy.skip) {
    require_few(bad, name, policy);
    return;
  }
  std::vector<std::string> faults;
  for (const BadSample& sample : bad) {
    faults.push_back(sample.text());
  }
  throw sherd::Error(sherd::ExitCode::BadData,
                     name + ": " + listed(faults) +
                         "\nCorrect the file, or give data.on_bad_sample = \"skip\" to leave bad "
                         "samples out.");
}

void require_few(const std::vector<BadSample>& bad, const std::string& name,
                 const BadSamplePolicy& policy) {
  const auto count = static_cast<std::int64_t>(bad.size());
  if (count > policy.most_skipped) {
    throw sherd::Error(
        sherd::ExitCode::BadData,
        fmt::format("{}: {} bad samples are more than data.max_bad_samples = {} allows to skip; "
                    "the first: {}",
                    name, count, policy.most_skipped, bad.front().text()));
  }
}

std::string to_jsonl(const std::vector<BadSample>& bad) {
  std::string text;
  for (const BadSample& sample : bad) {
    nlohmann::ordered_json line = {{"source", sample.source}};
    if (sample.unit == "place") {
      line[sample.unit] = sample.place;
    } else {
      line[sample.unit] = std::stoll(sample.place);
    }
    if (sample.byte) {
      line["byte"] = *sample.byte;
    }
    line["reason"] = sample.reason;
    text += line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
  }
  return text;
}

}  // namespace llm::text
