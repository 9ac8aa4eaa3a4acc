#include <algorithm>
#include <array>
#include <cmath>

#include <fmt/core.h>

#include "llm/config/words.h"
#include "llm/runs/comparison.h"

namespace llm::runs {

namespace {

// Distinct in light and in dark.
constexpr std::array kColours = {"#4477aa", "#ee6677", "#228833", "#ccbb44",
                                 "#66ccee", "#aa3377", "#999999"};

std::string escaped(const std::string& text) {
  std::string safe;
  for (const char c : text) {
    switch (c) {
      case '&':
        safe += "&amp;";
        break;
      case '<':
        safe += "&lt;";
        break;
      case '>':
        safe += "&gt;";
        break;
      case '"':
        safe += "&quot;";
        break;
      default:
        safe += c;
    }
  }
  return safe;
}

struct Point {
  double x = 0;
  double y = 0;
};

struct Curve {
  std::string name;
  std::size_t colour = 0;
  bool dashed = false;
  std::vector<Point> points;
};

// No more than a screen can show.
std::vector<Point> thinned(const std::vector<Point>& points) {
  constexpr std::size_t kMost = 600;
  const std::size_t stride = std::max<std::size_t>(1, points.size() / kMost);
  std::vector<Point> some;
  for (std::size_t i = 0; i < points.size(); i += stride) {
    some.push_back(points[i]);
  }
  if (!points.empty() && (points.size() - 1) % stride != 0) {
    some.push_back(points.back());  // where a run has come to
  }
  return some;
}

constexpr double kWidth = 640;
constexpr double kHeight = 240;
constexpr double kLeft = 64;
constexpr double kBottom = 28;
constexpr double kTop = 10;

struct Frame {
  Point least{0, 0};
  Point most{1, 1};

  [[nodiscard]] double x(double value) const {
    return kLeft + (value - least.x) / (most.x - least.x) * (kWidth - kLeft - 10);
  }
  [[nodiscard]] double y(double value) const {
    return kTop + (1 - (value - least.y) / (most.y - least.y)) * (kHeight - kTop - kBottom);
  }
};

Frame frame_of(const std::vector<Curve>& curves) {
  Frame frame{{INFINITY, 0}, {-INFINITY, -INFINITY}};
  for (const Curve& curve : curves) {
    for (const Point& point : curve.points) {
      frame.least.x = std::min(frame.least.x, point.x);
      frame.most.x = std::max(frame.most.x, point.x);
      frame.most.y = std::max(frame.most.y, point.y);
    }
  }
  frame.most.x = frame.most.x > frame.least.x ? frame.most.x : frame.least.x + 1;
  frame.most.y = frame.most.y > 0 ? frame.most.y : 1;
  return frame;
}

std::string axes(const Frame& frame) {
  std::string svg;
  constexpr int kLines = 4;
  for (int i = 0; i <= kLines; ++i) {
    const double value = frame.most.y * i / kLines;
    svg += fmt::format(
        R"(<line x1="{0}" x2="{1}" y1="{2:.1f}" y2="{2:.1f}" class="grid"/><text x="{3}" y="{4:.1f}" text-anchor="end">{5:.3g}</text>)",
        kLeft, kWidth - 10, frame.y(value), kLeft - 6, frame.y(value) + 4, value);
    const double at = frame.least.x + (frame.most.x - frame.least.x) * i / kLines;
    svg += fmt::format(R"(<text x="{:.1f}" y="{}" text-anchor="middle">{:.3g}</text>)", frame.x(at),
                       kHeight - 8, at);
  }
  return svg;
}

// `what`: also the id by which a program finds it.
std::string chart(const std::string& what, const std::string& title, const std::string& x_title,
                  const std::vector<Curve>& curves) {
  if (std::all_of(curves.begin(), curves.end(), [](const Curve& c) { return c.points.empty(); })) {
    return "";
  }
  const Frame frame = frame_of(curves);
  std::string svg = axes(frame);
  std::string names;
  for (const Curve& curve : curves) {
    std::string points;
    for (const Point& point : thinned(curve.points)) {
      points += fmt::format("{:.1f},{:.1f} ", frame.x(point.x), frame.y(point.y));
    }
    svg += fmt::format(
        R"(<polyline fill="none" stroke="{}" stroke-width="1.5"{} points="{}"><title>{}</title></polyline>)",
        kColours[curve.colour], curve.dashed ? R"( stroke-dasharray="5 4")" : "", points,
        escaped(curve.name));
    names += fmt::format(R"(<span><i style="background:{}"></i>{}</span> )", kColours[curve.colour],
                         escaped(curve.name));
  }
  return fmt::format(
      "<figure id=\"{}\"><figcaption>{} <small>over {}</small></figcaption>\n"
      "<svg viewBox=\"0 0 {} {}\" role=\"img\">{}</svg>\n<p class=\"names\">{}</p></figure>\n",
      what, title, x_title, kWidth, kHeight, svg, names);
}

template <class Value>
std::vector<Curve> curves_of_steps(const Comparison& comparison, Value value) {
  std::vector<Curve> curves;
  for (std::size_t i = 0; i < comparison.runs.size(); ++i) {
    Curve curve{comparison.runs[i].records.name, i % kColours.size(), false, {}};
    for (const track::StepRecord& step : comparison.runs[i].records.steps) {
      if (const double y = value(step); std::isfinite(y)) {
        curve.points.push_back({static_cast<double>(step.step), y});
      }
    }
    curves.push_back(std::move(curve));
  }
  return curves;
}

std::vector<Curve> loss_curves(const Comparison& comparison) {
  std::vector<Curve> curves =
      curves_of_steps(comparison, [](const track::StepRecord& step) { return step.loss; });
  for (std::size_t i = 0; i < comparison.runs.size(); ++i) {
    const RunRecords& run = comparison.runs[i].records;
    Curve curve{run.name + ", evaluated", i % kColours.size(), true, {}};
    const EvaluationSet first = first_set(run.evaluations);
    for (const Evaluation& one : run.evaluations) {
      if (one.set == first && std::isfinite(one.loss)) {
        curve.points.push_back({static_cast<double>(one.step), one.loss});
      }
    }
    if (!curve.points.empty()) {
      curves.push_back(std::move(curve));
    }
  }
  return curves;
}

std::string table(const char* id, const std::vector<std::vector<std::string>>& rows) {
  if (rows.empty()) {
    return "";
  }
  std::string html = fmt::format("<div class=\"wide\">\n<table id=\"{}\"><thead><tr>", id);
  for (const std::string& title : rows.front()) {
    html += "<th>" + escaped(title) + "</th>";
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

std::string differences(const Comparison& comparison) {
  if (comparison.comparable()) {
    return "";
  }
  std::string html = "<h2>Not comparable</h2>\n<ul id=\"differences\">\n";
  for (const std::string& line : comparison.differences) {
    html += "<li>" + escaped(line) + "</li>\n";
  }
  return html + "</ul>\n";
}

constexpr const char* kHead = R"(<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>Runs compared</title>
<style>
:root { color-scheme: light dark; --line: #8884; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .6rem; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
figure { margin: 2rem 0; }
svg { width: 100%; max-width: 52rem; height: auto; }
svg text { font-size: 11px; fill: currentColor; }
.grid { stroke: var(--line); }
.names span { margin-right: 1rem; white-space: nowrap; }
.names i { display: inline-block; width: .8em; height: .8em; margin-right: .3em; }
</style></head><body>
<h1>Runs compared</h1>
)";

}  // namespace

std::string to_html(const Comparison& comparison) {
  constexpr double kMib = 1024.0 * 1024.0;
  using Step = const track::StepRecord&;
  return kHead + table("runs", table_of(comparison)) + differences(comparison) +
         table("losses", losses_table_of(comparison)) +
         chart("loss", "Loss (dashed: evaluated)", "steps", loss_curves(comparison)) +
         chart("memory", "Largest resident memory of a rank, MiB", "steps",
               curves_of_steps(
                   comparison,
                   [](Step step) { return static_cast<double>(step.peak_rank_bytes) / kMib; })) +
         chart("seconds", "A step, seconds", "steps",
               curves_of_steps(comparison, [](Step step) { return step.step_seconds; })) +
         chart("waiting", "Waiting for data in a step, seconds", "steps",
               curves_of_steps(comparison, [](Step step) { return step.data_wait_seconds; })) +
         table("phases", phases_table_of(comparison)) + "</body></html>\n";
}

}  // namespace llm::runs
