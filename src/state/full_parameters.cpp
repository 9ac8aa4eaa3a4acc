#include <algorithm>
#include <exception>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/where.h>

#include "between_steps.h"
#include "checkpoint/agreement.h"
#include "runtime.h"
#include "sherd/state_dict.h"

namespace sherd {

namespace {

using detail::FlatSegment;
using detail::UnitState;

// The named unit and those inside it.
std::vector<UnitState*> units_named(detail::Runtime& runtime, const std::string& name) {
  std::vector<UnitState*> found;
  std::string known;
  for (const auto& unit : runtime.units()) {
    if (name.empty() || unit->name() == name || unit->name().starts_with(name + ".")) {
      found.push_back(unit.get());
    }
    known += (known.empty() ? "'" : ", '") + unit->name() + "'";
  }
  if (found.empty()) {
    throw Error(ExitCode::Usage, "[with_full_parameters] there is no unit '" + name +
                                     "'. The units are " + known + "; \"\" is all of them.");
  }
  return found;
}

// Units gathered for a look; sharded again when it ends.
class Gathered {
 public:
  Gathered(detail::Runtime& runtime, std::vector<UnitState*> units)
      : runtime_(runtime), units_(std::move(units)) {}
  Gathered(const Gathered&) = delete;
  Gathered& operator=(const Gathered&) = delete;
  ~Gathered() {
    runtime_.set_full_parameters_shown(false);
    try {
      for (UnitState* unit : units_) {
        unit->reshard();
      }
      runtime_.arena().trim();
    } catch (
        ...) {  // NOLINT(bugprone-empty-catch): a peer is lost, as the exception on its way says
    }
  }

  void gather() {
    const at::AutoGradMode in_param_dtype(true);  // not the masters, which evaluation may gather
    for (UnitState* unit : units_) {
      unit->unshard();
      unit->wait_unshard();
      for (const auto& segment : unit->segments()) {
        segment->copy_aside();
      }
    }
    runtime_.set_full_parameters_shown(true);
  }

  // Takes over what differs from what was gathered; a master keeps its bits where nothing does.
  void write_back() {
    for (UnitState* unit : units_) {
      for (const auto& segment : unit->segments()) {
        runtime_.named("publication", unit->name(), [&] { segment->begin_update(); });
      }
      for (const detail::UnitParameter& parameter : unit->parameters()) {
        write_back(*unit->segments()[parameter.segment], parameter);
      }
    }
  }

 private:
  void write_back(FlatSegment& segment, const detail::UnitParameter& parameter) {
    const detail::SegmentLayout& layout = segment.layout();
    const detail::ParameterPlace& place = layout.places[parameter.place];
    const int rank = runtime_.mesh().shard_rank();
    const detail::Range held = layout.held_by(place, rank);
    if (held.size() == 0) {
      return;
    }
    const int64_t start = place.offset + held.begin - rank * layout.shard_numel;
    const at::Tensor shown =
        parameter.tensor.detach().view({-1}).narrow(0, held.begin, held.size());
    const at::Tensor travelling = segment.travelling().narrow(0, start, held.size());
    if (segment.has_separate_master()) {
      const at::Tensor master = segment.master().narrow(0, start, held.size());
      const at::Tensor changed = shown.view(at::kShort).ne(travelling.view(at::kShort));
      master.copy_(at::where(changed, shown.to(at::kFloat), master));
    } else {
      travelling.copy_(shown);
    }
  }

  detail::Runtime& runtime_;
  std::vector<UnitState*> units_;
};

// Optimizers of LibTorch may write again when a look has ended, in whichever way.
class UpdateWindow {
 public:
  explicit UpdateWindow(detail::OptimViews& views) : views_(views) { views_.close_update_window(); }
  ~UpdateWindow() {
    if (views_.awaits_update_window()) {
      views_.expect_update();  // after an exception, when nobody can be waited for
    }
  }
  UpdateWindow(const UpdateWindow&) = delete;
  UpdateWindow& operator=(const UpdateWindow&) = delete;
  void open() { views_.open_update_window(); }

 private:
  detail::OptimViews& views_;
};

// Calls `inspect` on every rank; if it throws on one, that exception there and an Error elsewhere.
void inspect_on_all(World& world, const std::function<void()>& inspect) {
  std::exception_ptr mine;
  try {
    static_cast<void>(detail::agree(world, "[with_full_parameters] failed", [&]() -> std::string {
      try {
        inspect();
      } catch (...) {
        mine = std::current_exception();
        throw;
      }
      return "";
    }));
  } catch (const Error&) {
    if (mine) {
      std::rethrow_exception(mine);
    }
    throw;
  }
}

}  // namespace

void with_full_parameters(ShardedModule& model, const std::string& unit,
                          const std::function<void()>& inspect,
                          const FullParametersOptions& options) {
  detail::Runtime& runtime = model.runtime();
  detail::require_between_steps(runtime, "with_full_parameters");
  runtime.require_values("with_full_parameters");
  const std::vector<UnitState*> units = units_named(runtime, unit);
  runtime.reshard_all();
  UpdateWindow window(runtime.optim_views());
  const at::NoGradGuard no_grad;
  {
    Gathered gathered(runtime, units);
    gathered.gather();
    inspect_on_all(model.world(), inspect);
    if (options.writeback) {
      gathered.write_back();
    }
  }
  if (options.writeback) {
    runtime.publish();
  }
  window.open();
}

}  // namespace sherd
