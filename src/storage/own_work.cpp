#include "storage/own_work.h"

#include <cstring>
#include <new>

#include <ATen/record_function.h>
#include <c10/util/Exception.h>

#include "sherd/error.h"

namespace sherd::detail {

namespace {

bool says(const c10::Error& error, const char* words) {
  return std::strstr(error.what_without_backtrace(), words) != nullptr;
}

// Allocators of GPUs throw a type of their own; those of CPUs only say so in words.
bool is_out_of_memory(const c10::Error& error) {
  return dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr ||
         says(error, "can't allocate memory") || says(error, "not enough memory");
}

}  // namespace

std::string message_of(const std::exception& error) {
  const auto* of_c10 = dynamic_cast<const c10::Error*>(&error);
  return of_c10 != nullptr ? of_c10->what_without_backtrace() : error.what();
}

void throw_on() {
  try {
    throw;
  } catch (const std::bad_alloc&) {
    throw Error(ExitCode::OutOfMemory, "out of memory: the C++ library could not allocate.");
  } catch (const c10::Error& error) {
    if (is_out_of_memory(error)) {
      throw Error(ExitCode::OutOfMemory,
                  std::string("out of memory: ") + error.what_without_backtrace());
    }
    if (says(error, "INTERNAL ASSERT FAILED")) {
      check_invariant(false, error.what_without_backtrace());
    }
    throw;
  }
}

void check_invariant(bool holds, const char* broken) {
  if (!holds) {
    throw Error(ExitCode::Internal,
                std::string("a bug of Sherd: ") + broken + ". Please report it with this message.");
  }
}

std::shared_ptr<void> profiler_range(const char* name) {
  auto callbacks = at::getStepCallbacksUnlessEmpty(at::RecordScope::USER_SCOPE);
  if (!callbacks.has_value()) {
    return nullptr;
  }
  const auto range = std::make_shared<at::RecordFunction>(std::move(*callbacks));
  range->before(name);
  return range;
}

}  // namespace sherd::detail
