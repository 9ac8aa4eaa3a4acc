#include "between_steps.h"

#include <torch/csrc/autograd/graph_task.h>

#include "runtime.h"

namespace sherd::detail {

void require_between_steps(Runtime& runtime, const std::string& operation) {
  if (runtime.full_parameters_shown()) {
    throw Error(ExitCode::Usage, "[" + operation +
                                     "] was called inside with_full_parameters: call it after "
                                     "that.");
  }
  for (const auto& unit : runtime.units()) {
    if (unit->in_forward()) {
      throw Error(ExitCode::Usage, "[" + operation + "] was called inside the forward of unit '" +
                                       unit->name() + "': call it between steps.");
    }
  }
  if (!runtime.backward_active()) {
    return;
  }
  if (torch::autograd::get_current_graph_task_id() != -1) {
    throw Error(ExitCode::Usage,
                "[" + operation + "] was called inside a backward: call it between steps.");
  }
  runtime.abandon();  // the last backward ended in an exception: its end callback never ran
}

void await_readers(Runtime& runtime) {
  runtime.reshard_all();
  for (const auto& unit : runtime.units()) {
    for (const auto& segment : unit->segments()) {
      runtime.collective("publication", unit->name(), [&] { segment->begin_update(); });
    }
  }
}

}  // namespace sherd::detail
