#include "app/live_line.h"

#include <algorithm>
#include <cstddef>
#include <iostream>

#include <sys/ioctl.h>

#include "files/wrapped_text.h"
#include "launch/rank_environment.h"

namespace app {

std::string cut_to(const std::string& text, int columns) {
  int characters = 0;
  for (std::size_t at = 0; at < text.size(); ++at) {
    const bool begins_one = (static_cast<unsigned char>(text[at]) & 0xc0U) != 0x80U;
    if (begins_one && ++characters > columns) {
      return text.substr(0, at);
    }
  }
  return text;
}

std::string fitted(const std::string& text, int descriptor) {
  constexpr int kIndent = 4;
  const int columns = ::isatty(descriptor) == 1 ? terminal_columns(0, descriptor) : 0;
  if (columns <= 2 * kIndent) {
    return text;
  }
  std::string lines;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const std::string line = text.substr(begin, end - begin);
    const std::size_t spaces = std::min(line.find_first_not_of(' '), line.size());
    lines += (begin == 0 ? "" : "\n") +
             sherd::files::wrapped(line, columns,
                                   std::min(static_cast<int>(spaces) + kIndent, columns / 2));
    begin = end + 1;
  }
  return lines;
}

int terminal_columns(int otherwise, int descriptor) {
  winsize size{};
  const bool known = ::ioctl(descriptor, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return known ? size.ws_col : otherwise;
}

std::optional<int> terminal_rows() {
  winsize size{};
  const bool known = ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_row > 0;
  return known ? std::optional<int>(size.ws_row) : std::nullopt;
}

std::function<void(const std::string& text)> live_line(int descriptor) {
  constexpr int kUsualColumns = 80;
  using sherd::launch::Launcher;
  // Open MPI gives its ranks a terminal of their own, whatever its output is.
  const Launcher launcher = sherd::launch::detect(sherd::launch::process_environment).launcher;
  const bool is_mpi = launcher == Launcher::OpenMpi || launcher == Launcher::Pmi;
  if (is_mpi || ::isatty(descriptor) == 0) {
    return {};
  }
  return [descriptor](const std::string& text) {
    // A line that fills the last column would go on in the next.
    const int columns = terminal_columns(kUsualColumns, descriptor) - 1;
    (descriptor == STDERR_FILENO ? std::cerr : std::cout)
        << "\r\x1b[K" << cut_to(text, columns) << std::flush;
  };
}

llm::track::Output output_for_people(bool json_on_stdout) {
  return {.say = [json_on_stdout](const std::string& line) { say(line, json_on_stdout); },
          .show = live_line(json_on_stdout ? STDERR_FILENO : STDOUT_FILENO)};
}

std::unique_ptr<llm::track::Progress> progress_of(const Rank& rank, bool json_on_stdout) {
  return rank.is_first() ? std::make_unique<llm::track::Progress>(output_for_people(json_on_stdout))
                         : nullptr;
}

}  // namespace app
