#pragma once
// A curve for a terminal.

#include <string>
#include <vector>

namespace llm::runs {

struct PlotPoint {
  double x = 0;
  double y = 0;
};

/// Lines of text, the topmost first, without line ends: the curve in Braille dots, two columns and
/// four rows of them a character, with the largest and the least value before it. Where several
/// points fall into a column of dots their mean is shown; between points the curve goes straight.
/// Those that are not finite are left out. Empty for none.
[[nodiscard]] std::vector<std::string> plot(const std::vector<PlotPoint>& points, int columns,
                                            int rows);

/// The line below such a plot: where its first column begins and its last one ends.
[[nodiscard]] std::string plot_axis(const std::string& first, const std::string& last, int columns);

}  // namespace llm::runs
