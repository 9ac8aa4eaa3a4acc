#include "storage/profiler_range.h"

#include <ATen/record_function.h>

namespace sherd::detail {

struct ProfilerRange::State {
  explicit State(at::StepCallbacks&& callbacks) : record(std::move(callbacks)) {}
  at::RecordFunction record;
};

ProfilerRange::ProfilerRange(const char* name) {
  auto callbacks = at::getStepCallbacksUnlessEmpty(at::RecordScope::USER_SCOPE);
  if (callbacks.has_value()) {
    state_ = std::make_unique<State>(std::move(*callbacks));
    state_->record.before(name);
  }
}

ProfilerRange::~ProfilerRange() = default;

}  // namespace sherd::detail
