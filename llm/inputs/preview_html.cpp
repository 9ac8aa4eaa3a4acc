#include <fmt/core.h>

#include "llm/inputs/preview_text.h"
#include "llm/text/printable.h"

namespace llm::inputs {

namespace {

std::string html_text(const std::string& text) {
  std::string safe;
  for (const char c : text::printable(text, text::Lines::Keep)) {
    if (c == '&') {
      safe += "&amp;";
    } else if (c == '<') {
      safe += "&lt;";
    } else if (c == '>') {
      safe += "&gt;";
    } else if (c == '"') {
      safe += "&quot;";
    } else {
      safe += c;
    }
  }
  return safe;
}

constexpr std::size_t kTurnCharacters = 120;

constexpr const char* kPreviewHead = R"(<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>Data preview</title>
<style>
:root { color-scheme: light dark; --line: #8884; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 52rem; margin: 2rem auto; padding: 0 1rem; }
article { border-top: 1px solid var(--line); padding: 1rem 0; }
h2 { font-size: 1rem; overflow-wrap: anywhere; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; font: 14px/1.5 ui-monospace, monospace; margin: .5rem 0; }
mark { background: light-dark(#bdf0c4, #14532d); color: inherit; border-radius: 3px; }
del { opacity: .6; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
td { padding: .1rem .5rem .1rem 0; text-align: right; white-space: nowrap; }
.turns td { text-align: left; white-space: normal; overflow-wrap: anywhere; }
td.bar { width: 100%; text-align: left; }
td.bar div { height: .8rem; min-width: 1px; border-radius: 2px; background: light-dark(#3f8f57, #5bbf7a); }
.doubt { font-weight: 600; }
</style></head><body>
<h1>Data preview</h1>
)";

std::string histogram_of(const DataFigures& figures) {
  const std::vector<double> bars = bar_lengths(figures.lengths);
  std::string html =
      "<table><caption>Samples by length in tokens</caption>\n<thead><tr><td>tokens</td><td></td>"
      "<td>samples</td></tr></thead>\n";
  for (std::size_t i = 0; i < figures.lengths.size(); ++i) {
    const LengthBin& bin = figures.lengths[i];
    html += fmt::format(
        "<tr><td>{}–{}</td><td class=\"bar\"><div style=\"width:{:.1f}%\"></div></td>"
        "<td>{}</td></tr>\n",
        bin.from, bin.to, 100 * bars[i], bin.samples);
  }
  return html + "</table>\n";
}

std::string list_of(const DataPreview& preview) {
  std::string html = "<ul>\n<li>" + html_text(figures_line(preview.figures)) + "</li>\n";
  for (const std::string& doubt : doubts_of(preview)) {
    html += "<li class=\"doubt\">" + html_text(doubt) + "</li>\n";
  }
  for (const TrainingPart& part : preview.parts) {
    html += "<li>" + html_text(line_of(part)) + "</li>\n<li>" + html_text(part.report.sentence()) +
            "</li>\n";
    for (const std::string& line : {line_of(part.report.chat), part.report.unread.sentence()}) {
      html += line.empty() ? "" : "<li>" + html_text(line) + "</li>\n";
    }
  }
  for (const std::string& line : lines_of(preview.skipped)) {
    html += "<li class=\"doubt\">" + html_text(line) + "</li>\n";
  }
  return html + "</ul>\n" + histogram_of(preview.figures) +
         "<p><mark>Marked</mark> text is supervised: the model learns to write it.</p>\n";
}

// A row per message of a conversation.
std::string turns_table(const PreviewedSample& sample) {
  if (sample.turns.empty()) {
    return "";
  }
  std::string html = "<table class=\"turns\"><caption>Turns</caption>\n";
  for (const PreviewedTurn& turn : sample.turns) {
    const std::string text = html_text(begin_of(turn.text, kTurnCharacters));
    html += fmt::format("<tr><td>{}</td><td>{}</td></tr>\n", html_text(turn.role),
                        turn.learned ? "<mark>" + text + "</mark>" : text);
  }
  return html + "</table>\n";
}

std::string article_of(const PreviewedSample& sample, Clip clip) {
  std::string html =
      "<article><h2>" + html_text(title_of(sample)) + "</h2>\n" + turns_table(sample);
  const std::string unrolling = unrolling_text(sample);
  html += unrolling.empty() ? "" : "<p>" + html_text(unrolling) + "</p>\n";
  html += "<pre>";
  for (const TextPart& part : sample.parts) {
    const std::string text = html_text(clipped_middle(part.text, clip));
    html += part.begins_rejected ? "</pre>\n<p>rejected:</p>\n<pre>" : "";
    html += part.supervised ? "<mark>" + text + "</mark>" : text;
  }
  html += "</pre>\n";
  if (!sample.cut_text.empty()) {
    html += "<p>Cut off:</p>\n<pre><del>" + html_text(clipped_middle(sample.cut_text, clip)) +
            "</del></pre>\n";
  }
  return html + "</article>\n";
}

}  // namespace

std::string to_html(const DataPreview& preview, Clip clip) {
  std::string html = kPreviewHead + list_of(preview);
  for (const PreviewedSample& sample : preview.samples) {
    html += article_of(sample, clip);
  }
  return html + "</body></html>\n";
}

}  // namespace llm::inputs
