#include "llm/runs/plot.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/format.h>

namespace llm::runs {

namespace {

constexpr int kDotsAcross = 2;
constexpr int kDotsDown = 4;

/// The mean of what falls into each column of dots; NaN where nothing does.
std::vector<double> columns_of(const std::vector<PlotPoint>& points, int width) {
  const auto by_x = [](const PlotPoint& one, const PlotPoint& other) { return one.x < other.x; };
  const auto [first, last] = std::minmax_element(points.begin(), points.end(), by_x);
  const double span = std::max(last->x - first->x, std::numeric_limits<double>::min());
  std::vector<double> sums(static_cast<std::size_t>(width));
  std::vector<int> counts(sums.size());
  for (const PlotPoint& point : points) {
    const auto at = static_cast<std::size_t>((point.x - first->x) / span * (width - 1) + 0.5);
    sums[at] += point.y;
    ++counts[at];
  }
  for (std::size_t i = 0; i < sums.size(); ++i) {
    sums[i] = counts[i] > 0 ? sums[i] / counts[i] : NAN;
  }
  return sums;
}

/// What lies between two columns with values lies on the line from one to the other.
void fill_between(std::vector<double>& values) {
  std::size_t before = 0;  // the first and the last have values
  for (std::size_t at = 1; at < values.size(); ++at) {
    if (std::isnan(values[at])) {
      continue;
    }
    const double slope = (values[at] - values[before]) / static_cast<double>(at - before);
    for (std::size_t i = before + 1; i < at; ++i) {
      values[i] = values[before] + slope * static_cast<double>(i - before);
    }
    before = at;
  }
}

/// Characters of Braille dots.
class Canvas {
 public:
  Canvas(int columns, int rows)
      : columns_(columns),
        cells_(static_cast<std::size_t>(columns) * static_cast<std::size_t>(rows)) {}

  void set(int x, int y) {
    // The dots of a character in Unicode's order: U+2800 + the sum of their bits.
    constexpr unsigned kBits[kDotsDown][kDotsAcross] = {{1, 8}, {2, 16}, {4, 32}, {64, 128}};
    const int cell = y / kDotsDown * columns_ + x / kDotsAcross;
    cells_[static_cast<std::size_t>(cell)] |= kBits[y % kDotsDown][x % kDotsAcross];
  }
  [[nodiscard]] std::string line(int row) const {
    std::string text;
    for (int column = 0; column < columns_; ++column) {
      const unsigned bits = cells_[static_cast<std::size_t>(row * columns_ + column)];
      text += "\xe2";  // UTF-8 of U+2800 to U+28FF
      text += static_cast<char>(0xa0U | bits >> 6U);
      text += static_cast<char>(0x80U | (bits & 0x3fU));
    }
    return text;
  }

 private:
  int columns_;
  std::vector<unsigned> cells_;
};

}  // namespace

std::vector<std::string> plot(const std::vector<PlotPoint>& points, int columns, int rows) {
  std::vector<PlotPoint> finite;
  std::copy_if(points.begin(), points.end(), std::back_inserter(finite),
               [](const PlotPoint& point) { return std::isfinite(point.y); });
  if (finite.empty()) {
    return {};
  }
  std::vector<double> values = columns_of(finite, columns * kDotsAcross);
  fill_between(values);
  const auto end =
      std::find_if(values.begin(), values.end(), [](double y) { return std::isnan(y); });
  const auto [least, most] = std::minmax_element(values.begin(), end);  // of one step all, or one
  const double span = std::max(*most - *least, std::numeric_limits<double>::min());
  Canvas canvas(columns, rows);
  const int bottom = rows * kDotsDown - 1;
  const auto height = [&, top = *most](double y) {
    return static_cast<int>(std::lround((top - y) / span * bottom));
  };
  int last = height(values.front());
  for (auto value = values.begin(); value != end; ++value) {
    const int now = height(*value);
    const int from = now == last ? now : last < now ? last + 1 : last - 1;
    for (int y = std::min(from, now); y <= std::max(from, now); ++y) {
      canvas.set(static_cast<int>(value - values.begin()), y);
    }
    last = now;
  }
  std::vector<std::string> lines;
  for (int row = 0; row < rows; ++row) {
    const std::string label = row == 0          ? fmt::format("{:.4g}", *most)
                              : row == rows - 1 ? fmt::format("{:.4g}", *least)
                                                : "";
    lines.push_back(fmt::format("{:>9} ", label) + canvas.line(row));
  }
  return lines;
}

std::string plot_axis(const std::string& first, const std::string& last, int columns) {
  const auto least = static_cast<int>(last.size()) + 1;
  const int between = std::max(least, columns - static_cast<int>(first.size()));
  return fmt::format("{:>9} {}{:>{}}", "", first, last, between);
}

}  // namespace llm::runs
