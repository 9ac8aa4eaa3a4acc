// The program: how it begins and ends.

#include <csignal>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <string>

#include <c10/util/Exception.h>
#include <c10/util/Logging.h>

#include "app/allocator.h"
#include "app/failure.h"
#include "app/live_line.h"
#include "app/run_command.h"
#include "launch/descriptor_limit.h"
#include "launch/end_process.h"
#include "llm/text/printable.h"
#include "sherd/gpus.h"

namespace {

// Warnings of Sherd and LibTorch are lines for people, without a stamp of time, source and thread.
// What LibTorch's store and sockets log of connections that break goes: the error that ends the
// program says it, without stack traces.
class PlainWarnings final : public c10::WarningHandler {
  void process(const c10::Warning& warning) override {
    std::cerr << app::fitted("warning: " + warning.msg(), STDERR_FILENO) << std::endl;
  }
};

int run(int argc, char** argv) {
  try {
    app::install_allocator();
    sherd::launch::raise_descriptor_limit();
    return app::run_command(argc, argv);
  } catch (const std::exception&) {
    const app::Failure failure = app::current_failure();
    if (!failure.message.empty()) {
      // A message may quote data and models.
      const std::string text = llm::text::printable(failure.message, llm::text::Lines::Keep);
      std::cerr << app::fitted("sherd: " + text, STDERR_FILENO) << std::endl;
    }
    return static_cast<int>(failure.code);
  }
}

}  // namespace

int main(int argc, char** argv) {
  std::signal(SIGXFSZ, SIG_IGN);  // a file that grows too large is an error of that write
  std::signal(SIGPIPE, SIG_IGN);
  PlainWarnings warnings;
  const c10::WarningUtils::WarningHandlerGuard guard(&warnings);
  if (std::getenv("TORCH_CPP_LOG_LEVEL") == nullptr) {
    FLAGS_caffe2_log_level = c10::GLOG_ERROR;
  }
  const int code = run(argc, argv);
  if (sherd::thread_connects_in_nccl()) {
    sherd::launch::end_process(code);
  }
  return code;
}
