#include "llm/inputs/preview_text.h"

#include <algorithm>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include "files/wrapped_text.h"
#include "llm/text/printable.h"

namespace llm::inputs {

namespace {

using text::printable;

constexpr int kColumns = 80;

// A line of the preview's own, as lines of at most 80 columns.
std::string in_columns(const std::string& line) {
  constexpr int kIndent = 2;
  return sherd::files::wrapped(line, kColumns, kIndent);
}

// A line per message, numbered from 1 as in faults: "* 2  assistant  Lily has it." if it is
// learned.
std::string turn_lines(const std::vector<PreviewedTurn>& turns) {
  std::size_t widest = 0;
  for (const PreviewedTurn& turn : turns) {
    widest = std::max(widest, turn.role.size());
  }
  std::string lines = turns.empty() ? "" : "\n  turns (*: learned in this sample)";
  for (std::size_t i = 0; i < turns.size(); ++i) {
    const std::string head = fmt::format("  {} {:>2}  {:<{}}  ", turns[i].learned ? '*' : ' ',
                                         i + 1, printable(turns[i].role), widest);
    lines += "\n" + head + begin_of(turns[i].text, kColumns - head.size());
  }
  return lines;
}

std::string marked(const PreviewedSample& sample, Marks marks, text::Lines lines,
                   Clip clip = Clip::None) {
  const bool colour = marks == Marks::Colour;
  std::string text;
  for (const TextPart& part : sample.parts) {
    const std::string shown = printable(clipped_middle(part.text, clip), lines);
    if (part.begins_rejected) {
      text += lines == text::Lines::Keep ? "\nrejected:\n" : " | rejected: ";
    }
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
    if (part.begins_rejected) {
      text.back()["begins_rejected"] = true;
    }
  }
  nlohmann::ordered_json turns = nlohmann::ordered_json::array();
  for (const PreviewedTurn& turn : sample.turns) {
    turns.push_back({{"role", turn.role}, {"text", turn.text}, {"learned", turn.learned}});
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
          {"answer_is_outside", sample.cut.answer_is_outside == 1},
          {"turns", turns},
          {"sample_of_conversation", sample.number},
          {"samples_of_conversation", sample.unrolling.samples},
          {"template_rewrites", sample.unrolling.rewrites},
          {"prompt_is_apart", sample.unrolling.apart}};
}

// "34 tokens, 3 supervised; 30 tokens cut off".
std::string lengths_of(const PreviewedSample& sample) {
  std::string text = fmt::format("{}, {} supervised", text::counted(sample.tokens, "token"),
                                 sample.supervised_tokens);
  const auto answers = std::count_if(sample.parts.begin(), sample.parts.end(),
                                     [](const TextPart& part) { return part.supervised; });
  const bool is_pair = std::any_of(sample.parts.begin(), sample.parts.end(),
                                   [](const TextPart& part) { return part.begins_rejected; });
  if (is_pair) {
    text += " in a pair";
  } else if (answers > 1) {
    text += fmt::format(" in {} answers", answers);
  }
  if (sample.cut.prompt_tokens > 0 || !sample.cut_text.empty()) {
    text += fmt::format("; {} cut off", text::counted(sample.cut.prompt_tokens, "token"));
  }
  if (!sample.cut_text.empty()) {
    text += fmt::format(" ({})", text::counted(std::ssize(sample.cut_text), "byte"));
  }
  if (sample.cut.answer_tokens > 0) {
    text +=
        fmt::format("; {} of the answer cut off", text::counted(sample.cut.answer_tokens, "token"));
  }
  return text + (sample.cut.answer_is_outside == 1 ? "; answer in the part that was cut off" : "");
}

}  // namespace

std::string begin_of(const std::string& text, std::size_t characters) {
  const std::string shown = printable(text);
  std::size_t seen = 0;
  std::size_t last = 0;  // where the last character begins that fits beside …
  for (std::size_t at = 0; at < shown.size(); ++at) {
    if ((static_cast<unsigned char>(shown[at]) & 0xC0U) == 0x80U) {
      continue;
    }
    last = seen + 1 == characters ? at : last;
    if (++seen > characters) {
      return shown.substr(0, last) + "…";
    }
  }
  return shown;
}

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
         fmt::format("\n… {} left out; --full shows them …\n",
                     text::counted(static_cast<std::int64_t>(last - first), "byte")) +
         text.substr(last);
}

std::vector<std::string> doubts_of(const DataPreview& preview) {
  std::vector<std::string> doubts;
  const double samples = static_cast<double>(std::max<std::int64_t>(1, preview.figures.samples));
  if (preview.duplicates > 0) {
    doubts.push_back(fmt::format("duplicates: {} of the samples ({:.1f} %) repeat{} another one",
                                 preview.duplicates,
                                 100 * static_cast<double>(preview.duplicates) / samples,
                                 preview.duplicates == 1 ? "s" : ""));
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
  return lengths_of(sample) + ": " + marked(sample, Marks::Brackets, text::Lines::Escape);
}

std::string title_of(const PreviewedSample& sample) {
  return printable(fmt::format("{}, {}, step {}: {}", sample.source, sample.id, sample.step,
                               lengths_of(sample)));
}

std::string line_of(const TrainingPart& part) {
  return printable(fmt::format("{}: {} per epoch, from {}{}", part.report.name,
                               text::counted(part.samples, "sample"), part.report.samples,
                               part.report.skipped_text()));
}

std::vector<std::string> lines_of(const std::vector<text::BadSample>& skipped) {
  constexpr std::size_t kMostTold = text::FaultList::kMostTold;
  std::vector<std::string> lines;
  for (const text::BadSample& bad : skipped) {
    if (lines.size() == kMostTold) {
      lines.push_back(fmt::format("skipped: {} more, which a run lists in bad_samples.jsonl",
                                  skipped.size() - kMostTold));
      break;
    }
    lines.push_back(printable("skipped: " + bad.source + ": ") + bad.text());
  }
  return lines;
}

std::string unrolling_text(const PreviewedSample& sample) {
  const Unrolling& unrolling = sample.unrolling;
  if (unrolling.samples == 1) {
    return "";
  }
  std::string why;
  if (unrolling.rewrites) {
    why = "the template writes earlier turns differently once the conversation continues";
  }
  if (unrolling.apart) {
    why += why.empty() ? "" : ", and ";
    why += "a prompt alone has other token ids than in the whole text";
  }
  return fmt::format("sample {} of {} of its conversation{}{}", sample.number, unrolling.samples,
                     why.empty() ? "" : ": ", why);
}

std::string line_of(const ConversationFigures& figures) {
  if (figures.conversations == 0) {
    return "";
  }
  std::string line = text::counted(figures.conversations, "conversation");
  if (figures.unrolled == 0) {
    return line + ", one sample each";
  }
  std::string why;
  const auto add = [&why](const char* reason, std::int64_t count) {
    if (count > 0) {
      why += fmt::format("{}{} ({})", why.empty() ? ": " : ", ", reason, count);
    }
  };
  add("the template rewrites earlier turns", figures.rewritten);
  add("a prompt alone has other token ids", figures.apart);
  return line + fmt::format("; {} make{} several samples{}", figures.unrolled,
                            figures.unrolled == 1 ? "s" : "", why);
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

namespace {

// What the samples come from, and what yields none.
std::string source_lines(const DataPreview& preview) {
  std::string text;
  for (const std::string& doubt : doubts_of(preview)) {
    text += "\n" + in_columns(doubt);
  }
  for (const TrainingPart& part : preview.parts) {
    text += "\n" + in_columns(line_of(part));
    const std::string conversations = line_of(part.report.chat);
    text += conversations.empty() ? "" : "\n" + in_columns("  " + conversations);
  }
  for (const std::string& line : lines_of(preview.skipped)) {
    text += "\n" + in_columns(line);
  }
  return text;
}

// With what is said above it.
std::string sample_text(const PreviewedSample& sample, Marks marks, Clip clip) {
  std::string text = in_columns(title_of(sample)) + turn_lines(sample.turns);
  const std::string unrolling = unrolling_text(sample);
  text += unrolling.empty() ? "" : "\n" + in_columns("  " + unrolling);
  text += "\n" + marked(sample, marks, text::Lines::Keep, clip);
  if (!sample.cut_text.empty()) {
    text += "\ncut off: " + printable(clipped_middle(sample.cut_text, clip));
  }
  return text;
}

}  // namespace

std::string to_text(const DataPreview& preview, Marks marks, Clip clip) {
  std::string text = in_columns(figures_line(preview.figures)) +
                     histogram_lines(preview.figures.lengths) + source_lines(preview);
  if (!preview.samples.empty()) {
    text += marks == Marks::Colour ? "\nin green: supervised text, which the model learns to write"
                                   : "\nin [[ ]]: supervised text, which the model learns to write";
  }
  for (const PreviewedSample& sample : preview.samples) {
    text += "\n\n" + sample_text(sample, marks, clip);
  }
  return text;
}

std::string to_text(const std::vector<DealtSample>& dealt, Marks marks) {
  std::string text;
  for (const DealtSample& one : dealt) {
    text += fmt::format("{}rank {}, micro-batch {}: {}", text.empty() ? "" : "\n\n", one.rank,
                        one.micro_batch, sample_text(one.sample, marks, Clip::None));
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
    const DatasetReport& report = part.report;
    const ConversationFigures& told = report.chat;
    sources.push_back({{"source", report.name},
                       {"samples", part.samples},
                       {"of", report.samples},
                       {"conversations", told.conversations},
                       {"unrolled", told.unrolled},
                       {"template_rewrites", told.rewritten},
                       {"prompt_is_apart", told.apart},
                       {"skipped", report.skipped},
                       {"contexts_cut", report.contexts_cut},
                       {"answers_cut", report.answers_cut},
                       {"answers_outside", report.answers_outside},
                       {"conversations_cut", told.cut}});
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
                    {"yield_nothing", lines_of(preview.skipped)},
                    {"first", samples}};
  return printable(all.dump(-1, ' ', false, Json::error_handler_t::replace));
}

}  // namespace llm::inputs
