#include "launch/end_process.h"

#include <chrono>

#include <unistd.h>

#include "launch/background_writer.h"

namespace sherd::launch {

void end_process(const std::string& line, ExitCode code) {
  BackgroundWriter errors(STDERR_FILENO);
  errors.push(line + "\n");
  errors.drain(std::chrono::seconds(1));
  ::_exit(static_cast<int>(code));
}

}  // namespace sherd::launch
