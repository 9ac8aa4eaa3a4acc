#include "llm/train/preview_text.h"

#include <algorithm>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include "llm/text/printable.h"

namespace llm::train {

namespace {

using text::Lines;
using text::printable;

std::string marked(const PreviewedSample& sample, Marks marks, Lines lines,
                   Clip clip = Clip::None) {
  const bool colour = marks == Marks::Colour;
  std::string text;
  for (const TextPart& part : sample.parts) {
    const std::string shown = printable(clipped_middle(part.text, clip), lines);
    text += !part.supervised ? shown
            : colour         ? "\x1b[1;32m" + shown + "\x1b[0m"
                             : "[[" + shown + "]]";
  }
  return text;
}

nlohmann::ordered_json json_of(const PreviewedSample& sample) {
  nlohmann::ordered_json text = nlohmann::ordered_json::array();
  for (const TextPart& part : sample.parts) {
    text.push_back({{"text", part.text}, {"supervised", part.supervised}});
  }
  return {{"source", sample.source},
          {"id", sample.id},
          {"step", sample.step},
          {"tokens", sample.tokens},
          {"supervised_tokens", sample.supervised_tokens},
          {"text", text},
          {"cut_tokens", sample.cut.prompt_tokens},
          {"cut_text", sample.cut_text},
          {"cut_answer_tokens", sample.cut.answer_tokens},
          {"answer_was_cut", sample.cut.answer_tokens > 0},
          {"answer_is_outside", sample.cut.answer_is_outside == 1}};
}

// "34 tokens, 3 supervised; 30 tokens cut off".
std::string lengths_of(const PreviewedSample& sample) {
  std::string text =
      fmt::format("{} tokens, {} supervised", sample.tokens, sample.supervised_tokens);
  const auto answers = std::count_if(sample.parts.begin(), sample.parts.end(),
                                     [](const TextPart& part) { return part.supervised; });
  if (answers > 1) {
    text += fmt::format(" in {} answers", answers);
  }
  if (sample.cut.prompt_tokens > 0 || !sample.cut_text.empty()) {
    text += fmt::format("; {} tokens cut off", sample.cut.prompt_tokens);
  }
  if (!sample.cut_text.empty()) {
    text += fmt::format(" ({} bytes)", sample.cut_text.size());
  }
  if (sample.cut.answer_tokens > 0) {
    text += fmt::format("; {} tokens of the answer cut off", sample.cut.answer_tokens);
  }
  return text + (sample.cut.answer_is_outside == 1 ? "; answer in the part that was cut off" : "");
}

}  // namespace

std::string clipped_middle(const std::string& text, Clip clip) {
  constexpr std::size_t kMost = 2000;
  if (clip == Clip::None || text.size() <= kMost) {
    return text;
  }
  const auto is_inside = [&](std::size_t at) {  // of a character
    return at < text.size() && (static_cast<unsigned char>(text[at]) & 0xC0U) == 0x80U;
  };
  std::size_t first = kMost / 2;
  while (is_inside(first)) {
    --first;
  }
  std::size_t last = text.size() - kMost / 2;
  while (is_inside(last)) {
    ++last;
  }
  return text.substr(0, first) +
         fmt::format("\n… {} bytes left out; --full shows them …\n", last - first) +
         text.substr(last);
}

std::vector<std::string> doubts_of(const DataPreview& preview) {
  std::vector<std::string> doubts;
  const double samples = static_cast<double>(std::max<std::int64_t>(1, preview.figures.samples));
  if (preview.duplicates > 0) {
    doubts.push_back(fmt::format("duplicates: {} of the samples ({:.1f} %) repeat another one",
                                 preview.duplicates,
                                 100 * static_cast<double>(preview.duplicates) / samples));
  }
  if (preview.figures.unsupervised_samples > 0) {
    doubts.push_back(
        fmt::format("without supervised text: {} of the samples ({:.1f} %), which teach nothing",
                    preview.figures.unsupervised_samples,
                    100 * static_cast<double>(preview.figures.unsupervised_samples) / samples));
  }
  return doubts;
}

std::string one_line(const PreviewedSample& sample) {
  return lengths_of(sample) + ": " + marked(sample, Marks::Brackets, Lines::Escape);
}

std::string title_of(const PreviewedSample& sample) {
  return printable(fmt::format("{}, {}, step {}: {}", sample.source, sample.id, sample.step,
                               lengths_of(sample)));
}

std::string line_of(const TrainingPart& part) {
  return printable(fmt::format("{}: {} samples per epoch, from {}{}", part.report.name,
                               part.samples, part.report.samples, part.report.skipped_text()));
}

std::string line_of(const text::BadSample& bad) {
  return printable("skipped: " + bad.source + ": ") + bad.text();
}

std::string figures_line(const DataFigures& f) {
  const std::string padding =
      f.padding_if_padded > 0
          ? fmt::format("; no padding ({:.1f} % if micro-batches of {} were padded)",
                        100 * f.padding_if_padded, f.micro_batch)
          : "";
  return fmt::format("lengths: {} to {} tokens, median {}, 95 % within {}; {:.1f} % supervised{}",
                     f.shortest, f.longest, f.median, f.percentile_95, 100 * f.supervised_share(),
                     padding);
}

std::string to_text(const DataPreview& preview, Marks marks, Clip clip) {
  std::string text = figures_line(preview.figures) + histogram_lines(preview.figures.lengths);
  for (const std::string& doubt : doubts_of(preview)) {
    text += "\n" + doubt;
  }
  for (const TrainingPart& part : preview.parts) {
    text += "\n" + line_of(part);
  }
  for (const text::BadSample& bad : preview.skipped) {
    text += "\n" + line_of(bad);
  }
  if (!preview.samples.empty()) {
    text += marks == Marks::Colour ? "\nin green: supervised text, which the model learns to write"
                                   : "\nin [[ ]]: supervised text, which the model learns to write";
  }
  for (const PreviewedSample& sample : preview.samples) {
    text += "\n\n" + title_of(sample) + "\n" + marked(sample, marks, Lines::Keep, clip);
    if (!sample.cut_text.empty()) {
      text += "\ncut off: " + printable(clipped_middle(sample.cut_text, clip));
    }
  }
  return text;
}

std::string to_text(const std::vector<DealtSample>& dealt, Marks marks) {
  std::string text;
  for (const DealtSample& one : dealt) {
    text +=
        fmt::format("{}rank {}, micro-batch {}: {}\n{}", text.empty() ? "" : "\n\n", one.rank,
                    one.micro_batch, title_of(one.sample), marked(one.sample, marks, Lines::Keep));
  }
  return text;
}

std::string to_json(const std::vector<DealtSample>& dealt) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const DealtSample& one : dealt) {
    nlohmann::ordered_json json = {{"rank", one.rank}, {"micro_batch", one.micro_batch}};
    json.update(json_of(one.sample));
    list.push_back(std::move(json));
  }
  return printable(list.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
}

std::string to_json(const DataPreview& preview) {
  using Json = nlohmann::ordered_json;
  Json sources = Json::array();
  for (const TrainingPart& part : preview.parts) {
    const data::DatasetReport& report = part.report;
    sources.push_back({{"source", report.name},
                       {"samples", part.samples},
                       {"of", report.samples},
                       {"skipped", report.skipped},
                       {"contexts_cut", report.contexts_cut},
                       {"answers_cut", report.answers_cut},
                       {"answers_outside", report.answers_outside}});
  }
  Json samples = Json::array();
  for (const PreviewedSample& sample : preview.samples) {
    samples.push_back(json_of(sample));
  }
  const DataFigures& f = preview.figures;
  Json histogram = Json::array();
  for (const LengthBin& bin : f.lengths) {
    histogram.push_back({{"from", bin.from}, {"to", bin.to}, {"samples", bin.samples}});
  }
  const Json all = {{"samples", f.samples},
                    {"tokens", f.tokens},
                    {"supervised_tokens", f.supervised_tokens},
                    {"supervised_share", f.supervised_share()},
                    {"length", Json{{"min", f.shortest},
                                    {"median", f.median},
                                    {"p95", f.percentile_95},
                                    {"max", f.longest},
                                    {"histogram", histogram}}},
                    {"duplicates", preview.duplicates},
                    {"unsupervised_samples", f.unsupervised_samples},
                    {"micro_batch", f.micro_batch},
                    {"padding_share", 0.0},
                    {"padding_share_if_padded", f.padding_if_padded},
                    {"sources", sources},
                    {"skipped", preview.skipped.size()},
                    {"first", samples}};
  return printable(all.dump(-1, ' ', false, Json::error_handler_t::replace));
}

}  // namespace llm::train
