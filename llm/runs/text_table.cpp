#include "llm/runs/text_table.h"

#include <algorithm>

namespace llm::runs {

namespace {

constexpr std::size_t kBetweenColumns = 2;

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines(1);
  for (const char c : text) {
    if (c == '\n') {
      lines.emplace_back();
    } else {
      lines.back() += c;
    }
  }
  return lines;
}

// The titles as rows of their own, aligned at their last line.
std::vector<std::vector<std::string>> with_titles_in_lines(
    const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::vector<std::string>> titles;
  std::size_t height = 1;
  for (const std::string& title : rows.front()) {
    titles.push_back(lines_of(title));
    height = std::max(height, titles.back().size());
  }
  std::vector<std::vector<std::string>> all(height);
  for (const std::vector<std::string>& lines : titles) {
    for (std::size_t i = 0; i < height; ++i) {
      const std::size_t above = height - lines.size();
      all[i].push_back(i < above ? "" : lines[i - above]);
    }
  }
  all.insert(all.end(), rows.begin() + 1, rows.end());
  return all;
}

std::string line_of_block(const std::vector<std::string>& row, std::size_t from, std::size_t to,
                          const std::vector<std::size_t>& widths) {
  std::string line = row[0] + std::string(widths[0] - characters_in(row[0]), ' ');
  for (std::size_t i = from; i < to; ++i) {
    line += std::string(kBetweenColumns + widths[i] - characters_in(row[i]), ' ') + row[i];
  }
  return line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
}

}  // namespace

std::size_t characters_in(const std::string& text) {
  constexpr unsigned kMarks = 0xc0;  // of a byte that continues a character: 10......
  constexpr unsigned kContinues = 0x80;
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & kMarks) != kContinues;
  }));
}

std::string in_blocks(const std::vector<std::vector<std::string>>& rows, std::size_t width) {
  const auto lines = with_titles_in_lines(rows);
  std::vector<std::size_t> widths(rows.front().size(), 0);
  for (const auto& row : lines) {
    for (std::size_t i = 0; i < row.size(); ++i) {
      widths[i] = std::max(widths[i], characters_in(row[i]));
    }
  }
  std::string text;
  for (std::size_t from = 1; from < widths.size();) {
    std::size_t to = from;
    std::size_t used = widths[0];
    while (to < widths.size() && (to == from || used + kBetweenColumns + widths[to] <= width)) {
      used += kBetweenColumns + widths[to++];
    }
    text += text.empty() ? "" : "\n";
    for (const auto& row : lines) {
      const std::string line = line_of_block(row, from, to, widths);
      text += line == "\n" ? "" : line;  // a title of this block has fewer lines
    }
    from = to;
  }
  return text;
}

std::string wrapped(const std::string& text, std::size_t width, std::size_t indent) {
  std::string lines;
  std::string line;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find(' ', at), text.size());
    const std::string word = text.substr(at, end - at);
    if (!line.empty() && characters_in(line) + 1 + characters_in(word) > width) {
      lines += line + "\n";
      line = std::string(indent, ' ') + word;
    } else {
      line += (at == 0 ? "" : " ") + word;
    }
    at = end + 1;
  }
  return lines + line + "\n";
}

}  // namespace llm::runs
