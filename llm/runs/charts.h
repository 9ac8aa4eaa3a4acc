#pragma once
// Charts of an HTML page: curves as SVG, bars as HTML. They need no script and no network.

#include <cstddef>
#include <string>
#include <vector>

namespace llm::runs {

/// Text for HTML: the characters of markup escaped.
[[nodiscard]] std::string escaped(const std::string& text);

struct ChartPoint {
  double x = 0;
  double y = 0;
};

/// The points of one run.
struct Curve {
  std::string name;
  std::size_t run = 0;  ///< which of the page's runs: selects colour and dash
  std::vector<ChartPoint> points;
};

struct ChartTitle {
  std::string id;  ///< of the figure, for scripts and tests
  std::string title;
  std::string x_title;
  bool from_zero = false;  ///< the y axis begins at zero
};

/// A figure with curves and a legend with one entry per curve, drawn with its dash. Points are
/// marked if there are few of them. Ticks are round numbers. Empty if no curve has points.
[[nodiscard]] std::string curve_chart(const ChartTitle& title, const std::vector<Curve>& curves);

/// One bar: parts that are drawn one after the other, and a text for the whole.
struct Bar {
  std::string name;
  std::vector<double> parts;
  std::string text;
};

/// Bars below each other on a common scale, one per run. `parts` names the parts, each with its
/// colour, in a legend. Bars of one part have the colours of their runs and no legend.
[[nodiscard]] std::string bar_chart(const ChartTitle& title, const std::vector<std::string>& parts,
                                    const std::vector<Bar>& bars);

/// The style sheet of the charts: ten colours, for a light and for a dark page.
[[nodiscard]] std::string chart_style();

}  // namespace llm::runs
