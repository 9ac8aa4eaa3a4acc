#include <algorithm>
#include <array>
#include <cmath>

#include <fmt/core.h>

#include "llm/runs/charts.h"
#include "llm/runs/comparison.h"

namespace llm::runs {

namespace {

template <class Value>
std::vector<Curve> curves_of_steps(const Comparison& comparison, Value value) {
  std::vector<Curve> curves;
  for (std::size_t i = 0; i < comparison.runs.size(); ++i) {
    Curve curve{comparison.runs[i].records.name, i, {}};
    for (const track::StepRecord& step : comparison.runs[i].records.steps) {
      if (const double y = value(step); std::isfinite(y)) {
        curve.points.push_back({static_cast<double>(step.step), y});
      }
    }
    curves.push_back(std::move(curve));
  }
  return curves;
}

std::vector<Curve> evaluation_curves(const Comparison& comparison) {
  std::vector<Curve> curves;
  for (std::size_t i = 0; i < comparison.runs.size(); ++i) {
    const RunRecords& run = comparison.runs[i].records;
    Curve curve{run.name, i, {}};
    const EvaluationSet first = first_set(run.evaluations);
    for (const Evaluation& one : run.evaluations) {
      if (one.set == first && std::isfinite(one.loss)) {
        curve.points.push_back({static_cast<double>(one.step), one.loss});
      }
    }
    curves.push_back(std::move(curve));
  }
  return curves;
}

// On scales of their own: the program of a small model is most of what it takes.
std::string memory_bars(const Comparison& comparison) {
  std::vector<Bar> state;
  std::vector<Bar> program;
  for (const ComparedRun& run : comparison.runs) {
    const auto bytes = state_bytes(run.summary);
    const std::string& name = run.records.name;
    state.push_back({name,
                     {static_cast<double>(std::max<std::int64_t>(0, bytes.value_or(0)))},
                     bytes ? mib_of(*bytes) + " MiB" : "not recorded"});
    program.push_back({name,
                       {static_cast<double>(run.summary.constant_bytes)},
                       bytes ? mib_of(run.summary.constant_bytes) + " MiB" : "not recorded"});
  }
  return bar_chart({"state", "Memory of the model's state per rank", ""}, {"state"}, state) +
         bar_chart({"program", "Memory of the program itself per rank (a scale of its own)", ""},
                   {"program"}, program);
}

std::string phase_bars(const Rows& phases) {
  if (phases.empty()) {
    return "";
  }
  constexpr std::size_t kFirstPhase = 2;  // after the run's name and the whole step
  std::vector<Bar> bars;
  for (std::size_t i = 1; i < phases.size(); ++i) {
    Bar bar{phases[i][0], {}, phases[i][1] + " ms"};
    for (std::size_t j = kFirstPhase; j < phases[i].size(); ++j) {
      bar.parts.push_back(phases[i][j].empty() ? 0 : std::stod(phases[i][j]));
    }
    bars.push_back(std::move(bar));
  }
  return bar_chart({"phase-bars", "Time of a step by phase", ""},
                   {phases[0].begin() + kFirstPhase, phases[0].end()}, bars);
}

// Scrolls sideways in its own box. kScript hides the hint where the table fits.
std::string table(const char* id, const std::string& title, const Rows& rows) {
  if (rows.empty()) {
    return "";
  }
  std::string html = fmt::format(
      "<h2>{}</h2>\n<p class=\"hint\">Scroll the table sideways for more columns →</p>\n"
      "<div class=\"wide\">\n<table id=\"{}\"><thead><tr>",
      title, id);
  for (const std::string& cell : rows.front()) {
    html += "<th>" + escaped(cell) + "</th>";
  }
  html += "</tr></thead><tbody>\n";
  for (std::size_t i = 1; i < rows.size(); ++i) {
    html += "<tr>";
    for (const std::string& cell : rows[i]) {
      html += "<td>" + escaped(cell) + "</td>";
    }
    html += "</tr>\n";
  }
  return html + "</tbody></table>\n</div>\n";
}

std::string list(const char* id, const std::string& title, const std::vector<std::string>& lines) {
  if (lines.empty()) {
    return "";
  }
  std::string html = fmt::format("<h2>{}</h2>\n<ul id=\"{}\">\n", title, id);
  for (const std::string& line : lines) {
    html += "<li>" + escaped(line) + "</li>\n";
  }
  return html + "</ul>\n";
}

constexpr const char* kHead = R"(<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>Runs compared</title>
<style>
:root { color-scheme: light dark; --line: #8884; --page: #fff; }
@media (prefers-color-scheme: dark) { :root { --page: #121212; } }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 78rem; margin: 1.5rem auto; padding: 0 1rem; background: var(--page); overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 1.8rem 0 .5rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: 13px; font-variant-numeric: tabular-nums; overflow-wrap: normal; }
th, td { padding: .3rem; text-align: right; border-bottom: 1px solid var(--line); }
th { vertical-align: bottom; }
td { white-space: nowrap; }
th:first-child, td:first-child { text-align: left; position: sticky; left: 0; background: var(--page); }
.hint { margin: 0 0 .3rem; font-size: 13px; opacity: .75; }
@media (max-width: 40rem) { td:first-child { min-width: 7rem; max-width: 8rem; white-space: normal; overflow-wrap: break-word; } }
)";

constexpr const char* kScript = R"(<script>
const fit = () => document.querySelectorAll(".wide").forEach((box) => {
  box.previousElementSibling.hidden = box.scrollWidth <= box.clientWidth;
});
addEventListener("resize", fit);
fit();
</script>
)";

}  // namespace

std::string to_html(const Comparison& comparison) {
  using Step = const track::StepRecord&;
  const Rows phases = phases_table_of(comparison);
  return kHead + chart_style() + "</style></head><body>\n<h1>Runs compared</h1>\n" +
         list("differences", "Not comparable", comparison.differences) +
         list("conclusions", "In short", conclusions_of(comparison)) +
         table("runs", "Figures", table_of(comparison)) +
         table("settings", "Settings that differ", settings_table_of(comparison)) +
         "<h2>Charts</h2>\n<div class=\"charts\">\n" +
         curve_chart({"loss", "Training loss", "step"},
                     curves_of_steps(comparison, [](Step step) { return step.loss; })) +
         curve_chart({"eval-loss", "Evaluation loss", "step"}, evaluation_curves(comparison)) +
         curve_chart({"seconds", "Seconds per step", "step", /*from_zero=*/true},
                     curves_of_steps(comparison, [](Step step) { return step.step_seconds; })) +
         phase_bars(phases) + memory_bars(comparison) + "</div>\n" +
         table("losses", "Loss by epoch", losses_table_of(comparison)) +
         table("phases", "Time of a step, ms", phases) + kScript + "</body></html>\n";
}

}  // namespace llm::runs
