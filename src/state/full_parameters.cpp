#include <exception>
#include <string>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/where.h>
#include <c10/util/ScopeExit.h>

#include "rendezvous/agree.h"
#include "sherd/state_dict.h"
#include "state/entries.h"
#include "step/step.h"
#include "storage/own_work.h"

namespace sherd {

namespace {

using detail::UnitState;

using Units = std::vector<UnitState*>;

// Returns the named unit and those inside it.
Units units_named(detail::Engine& engine, const std::string& name) {
  Units found;
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

// Shows the whole parameters of the units.
void gather(detail::Engine& engine, const Units& units) {
  const at::AutoGradMode in_param_dtype(true);  // evaluation may gather fp32 masters
  for (UnitState* unit : units) {
    unit->unshard();
    unit->wait_unshard();
    for (const auto& segment : unit->segments()) {
      engine.model.collectives.run(detail::Work::Local, "copy of parameters", unit->name(),
                                   [&] { segment->copy_aside(); });
    }
  }
  engine.step.set_full_parameters_shown(true);
}

// If it fails, a peer is lost, and an exception in flight says so.
void shard_again(detail::Engine& engine, const Units& units) {
  engine.step.set_full_parameters_shown(false);
  detail::quietly([&] {
    for (UnitState* unit : units) {
      unit->reshard();
    }
    engine.model.arena.trim();
  });
}

void write_back(const UnitState& unit, const detail::UnitParameter& parameter) {
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
        const auto here = [&](const at::Tensor& all) { return all.narrow(0, first, part.numel()); };
        part.write(
            at::where(here(changed), here(shown).to(at::kFloat), part.read().to(changed.device())));
      });
}

// Writes back the elements that differ from what was gathered; the other masters keep their bits.
void write_back(detail::Engine& engine, const Units& units) {
  for (UnitState* unit : units) {
    for (const auto& segment : unit->segments()) {
      engine.model.collectives.run(detail::Work::Wait, "wait for readers", unit->name(),
                                   [&] { segment->begin_update(); });
    }
  }
  engine.step.writing_begins(detail::State::Values, "with_full_parameters");
  for (UnitState* unit : units) {
    for (const detail::UnitParameter& parameter : unit->parameters()) {
      engine.model.collectives.run(detail::Work::Local, "copy of parameters", unit->name(),
                                   [&] { write_back(*unit, parameter); });
    }
  }
}

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
  const Units units = units_named(engine, unit);
  step.reshard_all();
  step.close_update_window();
  try {
    const at::NoGradGuard no_grad;
    {
      const auto at_the_end = c10::make_scope_exit([&] { shard_again(engine, units); });
      gather(engine, units);
      inspect_on_all(model.world(), inspect);
      if (options.writeback) {
        write_back(engine, units);
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
