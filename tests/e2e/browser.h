#pragma once
// A browser without a window and without a network, which shows a page that the program wrote.

#include <array>
#include <cstdio>
#include <string>
#include <vector>

#include "tests/support/training.h"

namespace sherd::test {

// All that a program of the shell's prints to standard output.
inline std::string output_of(const std::string& command) {
  FILE* const program = ::popen(command.c_str(), "r");
  std::string text;
  std::array<char, 4096> bytes{};
  for (std::size_t size = 1; size > 0;) {
    size = std::fread(bytes.data(), 1, bytes.size(), program);
    text.append(bytes.data(), size);
  }
  ::pclose(program);
  return text;
}

// Debian's packages chromium-headless-shell (of scripts/setup --tests) and chromium; empty:
// neither.
inline std::string browser() {
  std::string found = output_of(
      "command -v chromium-headless-shell || { command -v chromium && echo --headless; }");
  for (char& c : found) {
    c = c == '\n' ? ' ' : c;
  }
  return found;
}

constexpr const char* kNoBrowser =
    "SKIPPED: there is no chromium-headless-shell and no chromium (scripts/setup --tests)";

struct Screen {
  int width_px = 1280;
  bool is_dark = false;
};

constexpr Screen kPhone{390, false};
constexpr Screen kDarkPhone{390, true};

// What stands between each `<tag …>` and its end.
inline std::vector<std::string> texts_of(const std::string& html, const std::string& tag) {
  std::vector<std::string> texts;
  const std::string end = "</" + tag + ">";
  for (std::size_t at = html.find("<" + tag); at != std::string::npos;
       at = html.find("<" + tag, at + 1)) {
    const char next = html.at(at + 1 + tag.size());
    if (next == '>' || next == ' ') {
      const std::size_t from = html.find('>', at) + 1;
      texts.push_back(html.substr(from, html.find(end, from) - from));
    }
  }
  return texts;
}

struct ShownPage {
  std::string dom;
  int content_width_px = 0;  // more than the screen's: one has to scroll sideways
  std::string text_colour;   // as CSS has it: rgb(…)
  std::vector<std::string> svg_colours;
  std::vector<std::string> legend_lines;  // colour and dash of each line in the first legend
};

// Measures the page where it is shown.
constexpr const char* kProbe = R"(<script>
const colourOf = (node) => getComputedStyle(node).color;
const widest = Math.max(document.documentElement.scrollWidth, document.body.scrollWidth);
const found = document.createElement("pre");
found.innerHTML = `<samp>${widest}</samp><samp>${colourOf(document.body)}</samp>` +
    [...document.querySelectorAll("svg text")].map((t) => `<samp>${getComputedStyle(t).fill}</samp>`).join("") +
    [...(document.querySelector(".legend")?.querySelectorAll("line") ?? [])].map((l) => `<kbd>${getComputedStyle(l).stroke} ${getComputedStyle(l).strokeDasharray}</kbd>`).join("");
document.body.append(found);
</script></body>)";

inline ShownPage shown(const fs::path& page, const Screen& screen) {
  const TempFolder home;
  const fs::path probed = home.path() / "page.html";
  std::string html = read_file(page);
  html.replace(html.rfind("</body>"), std::string("</body>").size(), kProbe);
  std::ofstream(probed) << html;
  const std::string folder = home.path().string();
  ShownPage found;
  found.dom =
      output_of("HOME=" + folder + " timeout 60 " + browser() +
                " --no-sandbox --disable-gpu --hide-scrollbars --user-data-dir=" + folder +
                " --window-size=" + std::to_string(screen.width_px) +
                ",844 --blink-settings=preferredColorScheme=" + (screen.is_dark ? "0" : "1") +
                " --dump-dom file://" + probed.string() + " 2> /dev/null");
  const std::size_t end_of_probe = found.dom.rfind("</script>");
  const std::vector<std::string> measured = end_of_probe == std::string::npos
                                                ? std::vector<std::string>()
                                                : texts_of(found.dom.substr(end_of_probe), "samp");
  if (measured.size() >= 2) {
    found.content_width_px = std::stoi(measured[0]);
    found.text_colour = measured[1];
    found.svg_colours.assign(measured.begin() + 2, measured.end());
    found.legend_lines = texts_of(found.dom.substr(end_of_probe), "kbd");
  }
  return found;
}

}  // namespace sherd::test
