// The program: how it begins and ends.

#include <csignal>
#include <cstdlib>
#include <iostream>
#include <new>
#include <string>
#include <system_error>

#include <c10/util/Exception.h>
#include <c10/util/Logging.h>

#include "app/allocator.h"
#include "app/live_line.h"
#include "app/run_command.h"
#include "launch/descriptor_limit.h"
#include "launch/end_process.h"
#include "launch/stop_request.h"
#include "llm/text/printable.h"
#include "llm/train/agreement.h"
#include "llm/train/out_of_memory.h"
#include "sherd/error.h"
#include "sherd/gpus.h"

namespace {

using sherd::ExitCode;

int fail(ExitCode code, const std::string& message) {
  if (!message.empty()) {
    // A message may quote data and models.
    const std::string text = llm::text::printable(message, llm::text::Lines::Keep);
    std::cerr << app::fitted("sherd: " + text, STDERR_FILENO) << std::endl;
  }
  return static_cast<int>(code);
}

int fail_without_memory(const std::string& why) {
  return fail(
      ExitCode::OutOfMemory,
      "out of memory" + why + ". Use more ranks, a smaller train.micro_batch or data.max_length.");
}

// After a stop request a rank may lose its peers before all have agreed to stop.
ExitCode code_of(const sherd::Error& error) {
  return error.is_of_peers() && sherd::launch::StopRequest::requested() ? ExitCode::Stopped
                                                                        : error.code();
}

// Resources that the system has run out of: threads and memory, or descriptors.
ExitCode code_of(const std::system_error& error) {
  const bool memory = error.code() == std::errc::resource_unavailable_try_again ||
                      error.code() == std::errc::not_enough_memory;
  const bool descriptors = error.code() == std::errc::too_many_files_open ||
                           error.code() == std::errc::too_many_files_open_in_system;
  return memory ? ExitCode::OutOfMemory : descriptors ? ExitCode::Unavailable : ExitCode::Internal;
}

// Warnings of Sherd and LibTorch are lines for people, without a stamp of time, source and thread.
// Hides what LibTorch's store and sockets log about broken connections: the error that ends the
// program reports it without stack traces.
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
  } catch (const llm::train::ReportedElsewhere& error) {
    return static_cast<int>(error.code());
  } catch (const sherd::Error& error) {
    return fail(code_of(error), error.what());
  } catch (const std::bad_alloc&) {
    return fail_without_memory("");
  } catch (const c10::Error& error) {
    return fail(llm::train::says_out_of_memory(error) ? ExitCode::OutOfMemory : ExitCode::Internal,
                error.what_without_backtrace());
  } catch (const std::system_error& error) {
    return fail(code_of(error), error.what());
  } catch (const std::exception& error) {
    return llm::train::says_out_of_memory(error)
               ? fail_without_memory(std::string(" (oneDNN: ") + error.what() + ")")
               : fail(ExitCode::Internal, error.what());
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
