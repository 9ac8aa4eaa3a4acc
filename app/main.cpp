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
#include "app/verb_of.h"
#include "launch/descriptor_limit.h"
#include "launch/end_process.h"
#include "sherd/backend.h"

namespace {

// Warnings of Sherd and LibTorch are lines for people, without a stamp of time, source and thread.
// Hides what LibTorch's store and sockets log about broken connections: the error that ends the
// program reports it without stack traces.
class PlainWarnings final : public c10::WarningHandler {
  void process(const c10::Warning& warning) override {
    std::cerr << app::fitted("warning: " + warning.msg(), STDERR_FILENO) << std::endl;
  }
};

}  // namespace

int main(int argc, char** argv) {
  std::signal(SIGXFSZ, SIG_IGN);  // a file that grows too large is an error of that write
  std::signal(SIGPIPE, SIG_IGN);
  PlainWarnings warnings;
  const c10::WarningUtils::WarningHandlerGuard guard(&warnings);
  if (std::getenv("TORCH_CPP_LOG_LEVEL") == nullptr) {
    FLAGS_caffe2_log_level = c10::GLOG_ERROR;
  }
  int code = 0;
  try {
    app::install_allocator();
    sherd::launch::raise_descriptor_limit();
    code = app::verb_of(argc, argv)();
  } catch (const std::exception&) {
    code = app::report(app::current_failure());
  }
  if (sherd::thread_connects_in_nccl()) {
    sherd::launch::end_process(code);
  }
  return code;
}
