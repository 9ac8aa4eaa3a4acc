#include "app/live_line.h"

#include <cstddef>
#include <iostream>

#include <sys/ioctl.h>
#include <unistd.h>

#include "app/rank.h"
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

int terminal_columns(int otherwise) {
  winsize size{};
  const bool known = ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return known ? size.ws_col : otherwise;
}

std::function<void(const std::string& text)> live_line() {
  constexpr int kUsualColumns = 80;
  using sherd::launch::Launcher;
  // Open MPI gives its ranks a terminal of their own, whatever its output is.
  const Launcher launcher = sherd::launch::detect(sherd::launch::process_environment).launcher;
  const bool is_mpi = launcher == Launcher::OpenMpi || launcher == Launcher::Pmi;
  if (is_mpi || ::isatty(STDOUT_FILENO) == 0) {
    return {};
  }
  return [](const std::string& text) {
    // A line that fills the last column would go on in the next.
    const int columns = terminal_columns(kUsualColumns) - 1;
    std::cout << "\r\x1b[K" << cut_to(text, columns) << std::flush;
  };
}

llm::track::Output output_for_people(bool json_on_stdout) {
  return {.say = [json_on_stdout](const std::string& line) { say(line, json_on_stdout); },
          .show = json_on_stdout ? nullptr : live_line()};
}

}  // namespace app
