#include "app/failure.h"

#include <new>
#include <system_error>

#include <c10/util/Exception.h>

#include "app/rank.h"
#include "launch/stop_request.h"
#include "llm/setup/agreement.h"
#include "llm/text/printable.h"

namespace app {

namespace {

using sherd::ExitCode;

Failure without_memory(const std::string& why) {
  return {ExitCode::OutOfMemory,
          "out of memory" + why +
              ". Use more ranks, a smaller train.micro_batch or data.max_length; while data is "
              "prepared, a smaller data.prepare_memory."};
}

// After a stop request a rank may lose its peers before all have agreed to stop.
ExitCode code_of(const sherd::Error& error) {
  return error.is_of_peers() && sherd::launch::StopRequest::requested() ? ExitCode::Stopped
                                                                        : error.code();
}

// The system has run out of threads, memory or descriptors.
ExitCode code_of(const std::system_error& error) {
  const bool memory = error.code() == std::errc::resource_unavailable_try_again ||
                      error.code() == std::errc::not_enough_memory;
  const bool descriptors = error.code() == std::errc::too_many_files_open ||
                           error.code() == std::errc::too_many_files_open_in_system;
  return memory ? ExitCode::OutOfMemory : descriptors ? ExitCode::Unavailable : ExitCode::Internal;
}

}  // namespace

Failure current_failure() {
  try {
    throw;
  } catch (const llm::setup::ReportedElsewhere& error) {
    return {error.code(), ""};
  } catch (const sherd::Error& error) {
    return {code_of(error), error.what()};
  } catch (const std::bad_alloc&) {
    return without_memory("");
  } catch (const c10::Error& error) {
    return {llm::setup::says_out_of_memory(error) ? ExitCode::OutOfMemory : ExitCode::Internal,
            error.what_without_backtrace()};
  } catch (const std::system_error& error) {
    return {code_of(error), error.what()};
  } catch (const std::exception& error) {
    return llm::setup::says_out_of_memory(error)
               ? without_memory(std::string(" (oneDNN: ") + error.what() + ")")
               : Failure{ExitCode::Internal, error.what()};
  }
}

int report(const Failure& failure) {
  if (!failure.message.empty()) {  // which may quote data and models
    say("sherd: " + llm::text::printable(failure.message, llm::text::Lines::Keep),
        /*json_on_stdout=*/true);
  }
  return static_cast<int>(failure.code);
}

}  // namespace app
