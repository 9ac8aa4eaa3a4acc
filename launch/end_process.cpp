#include "launch/end_process.h"

#include <chrono>
#include <cstdio>
#include <iostream>

#include <unistd.h>

#include "launch/background_writer.h"

namespace sherd::launch {

void end_process(const std::string& line, ExitCode code) {
  BackgroundWriter errors(STDERR_FILENO);
  errors.push(line + "\n");
  errors.drain(std::chrono::seconds(1));
  ::_exit(static_cast<int>(code));
}

void end_process(int code) {
  std::cout.flush();
  std::cerr.flush();
  std::fflush(nullptr);
  ::_exit(code);
}

}  // namespace sherd::launch
