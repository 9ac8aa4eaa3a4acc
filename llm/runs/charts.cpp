#include "llm/runs/charts.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <string_view>

#include <fmt/core.h>

namespace llm::runs {

namespace {

struct Colour {
  const char* on_light;
  const char* on_dark;
};

// Blue, orange, green, red, violet, brown, pink, grey, olive, cyan: each at a contrast of 3 or
// more.
constexpr std::array<Colour, 10> kColours = {{{"#1f77b4", "#6fb3e8"},
                                              {"#d95f02", "#ff9a4d"},
                                              {"#2a8a2a", "#66cc66"},
                                              {"#c81d25", "#ff7b7b"},
                                              {"#7a4fb5", "#c4a0ee"},
                                              {"#7a4a2b", "#c99a6e"},
                                              {"#d6409f", "#ff9ad0"},
                                              {"#6b6b6b", "#b5b5b5"},
                                              {"#858500", "#d2d24a"},
                                              {"#0b8a9e", "#4fd6e6"}}};
// Empty: a solid line.
constexpr std::array<std::string_view, 4> kDashes = {"", "9 4", "3 3", "10 3 3 3"};

std::size_t colour_of(std::size_t run) {
  return run % kColours.size();
}

// Neighbours differ, so that curves that coincide are all seen; 40 runs have pairs of their own.
std::string_view dash_of(std::size_t run) {
  return kDashes[(run + run / kColours.size()) % kDashes.size()];
}

std::string line_style(std::size_t run) {
  const std::string_view dash = dash_of(run);
  return fmt::format(R"(class="c{}"{})", colour_of(run),
                     dash.empty() ? "" : fmt::format(R"( stroke-dasharray="{}")", dash));
}

// No more than a screen can show.
std::vector<ChartPoint> thinned(const std::vector<ChartPoint>& points) {
  constexpr std::size_t kMost = 600;
  const std::size_t stride = std::max<std::size_t>(1, points.size() / kMost);
  std::vector<ChartPoint> some;
  for (std::size_t i = 0; i < points.size(); i += stride) {
    some.push_back(points[i]);
  }
  if (!points.empty() && (points.size() - 1) % stride != 0) {
    some.push_back(points.back());  // the last step of the run
  }
  return some;
}

constexpr double kWidth = 640;
constexpr double kHeight = 300;
constexpr double kLeft = 64;
constexpr double kRight = 16;
constexpr double kBottom = 36;
constexpr double kTop = 14;

// Round numbers at equal distances: 1, 2 or 5 times a power of ten.
struct Ticks {
  double first = 0;
  double step = 1;
  int count = 1;

  [[nodiscard]] double last() const { return first + step * (count - 1); }
  [[nodiscard]] double at(int i) const { return first + step * i; }
};

Ticks ticks_between(double least, double most, double smallest_step) {
  constexpr double kWanted = 5;
  const double span = most > least ? most - least : std::max(std::abs(most), 1.0) / 10;
  const double power = std::pow(10, std::floor(std::log10(span / kWanted)));
  double step = 10 * power;
  for (const double times : {5.0, 2.0, 1.0}) {
    step = span / (times * power) <= kWanted + 1 ? times * power : step;
  }
  step = std::max(step, smallest_step);
  const double first = std::floor(least / step + 1e-9) * step;
  const int intervals = std::max(1, static_cast<int>(std::ceil((most - first) / step - 1e-9)));
  return {first, step, intervals + 1};
}

struct Axes {
  Ticks across;
  Ticks up;

  [[nodiscard]] double x(double value) const {
    return kLeft +
           (value - across.first) / (across.last() - across.first) * (kWidth - kLeft - kRight);
  }
  [[nodiscard]] double y(double value) const {
    return kTop + (1 - (value - up.first) / (up.last() - up.first)) * (kHeight - kTop - kBottom);
  }
};

Axes axes_of(const std::vector<Curve>& curves, bool from_zero) {
  ChartPoint least{INFINITY, from_zero ? 0 : INFINITY};
  ChartPoint most{-INFINITY, from_zero ? 0 : -INFINITY};
  for (const Curve& curve : curves) {
    for (const ChartPoint& point : curve.points) {
      least = {std::min(least.x, point.x), std::min(least.y, point.y)};
      most = {std::max(most.x, point.x), std::max(most.y, point.y)};
    }
  }
  // Curves of steps begin at zero unless they begin late.
  least.x = least.x < (most.x - least.x) / 2 || most.x == least.x ? 0 : least.x;
  return {ticks_between(least.x, most.x, 1), ticks_between(least.y, most.y, 0)};
}

std::string grid(const Axes& axes) {
  std::string svg;
  for (int i = 0; i < axes.up.count; ++i) {
    const double y = axes.y(axes.up.at(i));
    svg += fmt::format(
        R"(<line x1="{0}" x2="{1}" y1="{2:.1f}" y2="{2:.1f}" class="grid"/><text x="{3}" y="{4:.1f}" text-anchor="end" class="tick">{5:.6g}</text>)",
        kLeft, kWidth - kRight, y, kLeft - 6, y + 5, axes.up.at(i));
  }
  for (int i = 0; i < axes.across.count; ++i) {
    svg += fmt::format(R"(<text x="{:.1f}" y="{}" text-anchor="middle" class="tick">{:.6g}</text>)",
                       axes.x(axes.across.at(i)), kHeight - 10, axes.across.at(i));
  }
  return svg;
}

std::string drawn(const Curve& curve, const Axes& axes) {
  constexpr std::size_t kMostMarked = 12;  // more would hide the dashes
  const std::vector<ChartPoint> points = thinned(curve.points);
  std::string line;
  std::string marks;
  for (const ChartPoint& point : points) {
    const double x = axes.x(point.x);
    const double y = axes.y(point.y);
    line += fmt::format("{:.1f},{:.1f} ", x, y);
    if (points.size() <= kMostMarked) {
      marks += fmt::format(R"(<circle cx="{:.1f}" cy="{:.1f}" r="3" class="b{}"/>)", x, y,
                           colour_of(curve.run));
    }
  }
  return fmt::format(R"(<polyline {} points="{}"><title>{}</title></polyline>)",
                     line_style(curve.run), line, escaped(curve.name)) +
         marks;
}

std::string legend_line(const Curve& curve) {
  return fmt::format(
      R"(<li><svg class="key" viewBox="0 0 36 10"><line x1="0" x2="36" y1="5" y2="5" {}/></svg>{}</li>)",
      line_style(curve.run), escaped(curve.name));
}

std::string figure(const ChartTitle& title, const std::string& content) {
  return fmt::format("<figure id=\"{}\"><figcaption>{}{}</figcaption>\n{}</figure>\n", title.id,
                     escaped(title.title),
                     title.x_title.empty() ? "" : " <small>by " + title.x_title + "</small>",
                     content);
}

}  // namespace

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

std::string curve_chart(const ChartTitle& title, const std::vector<Curve>& curves) {
  std::vector<Curve> shown;
  std::copy_if(curves.begin(), curves.end(), std::back_inserter(shown),
               [](const Curve& curve) { return !curve.points.empty(); });
  if (shown.empty()) {
    return "";
  }
  const Axes axes = axes_of(shown, title.from_zero);
  std::string svg = grid(axes);
  std::string legend;
  for (const Curve& curve : shown) {
    svg += drawn(curve, axes);
    legend += legend_line(curve);
  }
  return figure(title,
                fmt::format("<svg class=\"chart\" viewBox=\"0 0 {} {}\" role=\"img\">{}</svg>\n<ul "
                            "class=\"legend\">{}</ul>\n",
                            kWidth, kHeight, svg, legend));
}

std::string bar_chart(const ChartTitle& title, const std::vector<std::string>& parts,
                      const std::vector<Bar>& bars) {
  const auto sum = [](const Bar& bar) {
    return std::accumulate(bar.parts.begin(), bar.parts.end(), 0.0);
  };
  double most = 0;
  for (const Bar& bar : bars) {
    most = std::max(most, sum(bar));
  }
  if (most <= 0) {
    return "";
  }
  std::string rows;
  for (std::size_t run = 0; run < bars.size(); ++run) {
    const Bar& bar = bars[run];
    std::string drawn_parts;
    for (std::size_t i = 0; i < bar.parts.size(); ++i) {
      drawn_parts += fmt::format(R"(<i class="b{}" style="width:{:.2f}%"></i>)",
                                 colour_of(parts.size() > 1 ? i : run), 100 * bar.parts[i] / most);
    }
    rows += fmt::format("<div class=\"bar\"><span>{}</span><b>{}</b><div>{}</div></div>\n",
                        escaped(bar.name), escaped(bar.text), drawn_parts);
  }
  std::string legend;
  for (std::size_t i = 0; i < parts.size() && parts.size() > 1; ++i) {
    legend += fmt::format(R"(<li><i class="key b{}"></i>{}</li>)", colour_of(i), escaped(parts[i]));
  }
  return figure(title, rows + (legend.empty() ? "" : "<ul class=\"legend\">" + legend + "</ul>\n"));
}

std::string chart_style() {
  std::string light;
  std::string dark;
  std::string classes;
  for (std::size_t i = 0; i < kColours.size(); ++i) {
    light += fmt::format(" --c{}: {};", i, kColours[i].on_light);
    dark += fmt::format(" --c{}: {};", i, kColours[i].on_dark);
    classes += fmt::format(
        ".c{0} {{ stroke: var(--c{0}); }} .b{0} {{ background: var(--c{0}); "
        "fill: var(--c{0}); }}\n",
        i);
  }
  return fmt::format(":root {{{}}}\n@media (prefers-color-scheme: dark) {{ :root {{{}}} }}\n{}",
                     light, dark, classes) +
         R"(.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 32rem), 1fr)); gap: 1.5rem; align-items: start; }
figure { margin: 0; min-width: 0; }
figcaption { font-weight: 600; }
.chart { width: 100%; height: auto; }
.chart text { font-size: 13px; fill: currentColor; }
.chart polyline, .key line { fill: none; stroke-width: 2; }
.grid { stroke: var(--line); }
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: .1rem 1rem; margin: .3rem 0; padding: 0; }
.legend li { overflow-wrap: anywhere; }
svg.key { width: 36px; height: 10px; margin-right: .4em; }
i.key { display: inline-block; width: .8em; height: .8em; margin-right: .4em; }
.bar { display: grid; grid-template-columns: 1fr auto; margin: .35rem 0; }
.bar span { overflow-wrap: anywhere; }
.bar b { font-weight: 400; font-variant-numeric: tabular-nums; }
.bar div { grid-column: 1 / -1; display: flex; height: .7rem; background: var(--line); }
@media (max-width: 40rem) { .chart text { font-size: 20px; } }
)";
}

}  // namespace llm::runs
