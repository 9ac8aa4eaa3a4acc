#include <algorithm>
#include <exception>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/where.h>

#include "rendezvous/agree.h"
#include "sherd/state_dict.h"
#include "state/entries.h"
#include "step/step.h"

namespace sherd {

namespace {

using detail::UnitState;

// Returns the named unit and those inside it.
std::vector<UnitState*> units_named(detail::Engine& engine, const std::string& name) {
  std::vector<UnitState*> found;
  std::string known;
  for (const auto& unit : engine.model.units) {
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

// Keeps units gathered while it lives.
class Gathered {
 public:
  Gathered(detail::Engine& engine, std::vector<UnitState*> units)
      : engine_(engine), units_(std::move(units)) {}
  Gathered(const Gathered&) = delete;
  Gathered& operator=(const Gathered&) = delete;
  ~Gathered() {
    engine_.step.set_full_parameters_shown(false);
    try {
      for (UnitState* unit : units_) {
        unit->reshard();
      }
      engine_.model.arena.trim();
    } catch (...) {  // NOLINT(bugprone-empty-catch): a peer is lost; an exception in flight says so
    }
  }

  void gather() {
    const at::AutoGradMode in_param_dtype(true);  // evaluation may gather fp32 masters
    for (UnitState* unit : units_) {
      unit->unshard();
      unit->wait_unshard();
      for (const auto& segment : unit->segments()) {
        engine_.model.collectives.run(detail::Work::Local, "copy of parameters", unit->name(),
                                      [&] { segment->copy_aside(); });
      }
    }
    engine_.step.set_full_parameters_shown(true);
  }

  // Writes back the elements that differ from what was gathered; the other masters keep their bits.
  void write_back() {
    for (UnitState* unit : units_) {
      for (const auto& segment : unit->segments()) {
        engine_.model.collectives.run(detail::Work::Wait, "wait for readers", unit->name(),
                                      [&] { segment->begin_update(); });
      }
    }
    engine_.step.writing_begins(detail::State::Values, "with_full_parameters");
    for (UnitState* unit : units_) {
      for (const detail::UnitParameter& parameter : unit->parameters()) {
        engine_.model.collectives.run(detail::Work::Local, "copy of parameters", unit->name(),
                                      [&] { write_back(*unit, parameter); });
      }
    }
  }

 private:
  static void write_back(const UnitState& unit, const detail::UnitParameter& parameter) {
    const detail::HeldPart held = unit.held_part(parameter);
    if (held.range.size() == 0) {
      return;
    }
    const at::Tensor shown =
        parameter.tensor.detach().view({-1}).narrow(0, held.range.begin, held.range.size());
    const auto in_use = held.segment.parameters().use(held.segment.travelling(), /*writes=*/true);
    const at::Tensor travelling = held.of(held.segment.travelling());
    if (!held.segment.has_split_master() && !held.segment.has_separate_master()) {
      travelling.copy_(shown);
      return;
    }
    const at::Tensor changed =
        shown.view(at::kShort).ne(travelling.to(shown.device()).view(at::kShort));
    held.values().for_each_stretch(
        /*writes=*/true, [&](int64_t first, const detail::ShardValues& part) {
          const auto here = [&](const at::Tensor& all) {
            return all.narrow(0, first, part.numel());
          };
          part.write(at::where(here(changed), here(shown).to(at::kFloat),
                               part.read().to(changed.device())));
        });
  }

  detail::Engine& engine_;
  std::vector<UnitState*> units_;
};

// Calls `inspect` on every rank. If it throws, that rank rethrows; the others throw an Error.
void inspect_on_all(World& world, const std::function<void()>& inspect) {
  std::exception_ptr mine;
  try {
    detail::on_all_ranks(world, "[with_full_parameters] failed", [&] {
      try {
        inspect();
      } catch (...) {
        mine = std::current_exception();
        throw;
      }
    });
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
  detail::Engine& engine = detail::engine_of(model);
  detail::Step& step = engine.step;
  step.require_between_steps("with_full_parameters");
  step.check_whole("with_full_parameters");
  detail::require_values(engine.model, "with_full_parameters");
  const std::vector<UnitState*> units = units_named(engine, unit);
  step.reshard_all();
  step.close_update_window();
  try {
    const at::NoGradGuard no_grad;
    {
      Gathered gathered(engine, units);
      gathered.gather();
      inspect_on_all(model.world(), inspect);
      if (options.writeback) {
        gathered.write_back();
      }
    }
    if (options.writeback) {
      step.publish();
      step.writing_ended(detail::State::Values);
    }
    step.open_update_window();
  } catch (...) {
    if (step.awaits_update_window()) {
      step.expect_update();  // an update may follow, but ranks cannot be waited for
    }
    throw;
  }
}

}  // namespace sherd
