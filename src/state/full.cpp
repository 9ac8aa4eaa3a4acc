#include <set>
#include <utility>

#include <ATen/ops/equal.h>

#include "rendezvous/agree.h"
#include "sherd/state_dict.h"
#include "state/entries.h"
#include "state/transfer.h"
#include "step/step.h"

namespace sherd {

namespace {

void check_dtype(const FullStateOptions& options) {
  if (options.dtype && !c10::isFloatingType(*options.dtype)) {
    throw Error(ExitCode::Usage,
                std::string("[full_state_dict] dtype is floating-point, or unset for each tensor's "
                            "own; got ") +
                    c10::toString(*options.dtype) + ".");
  }
}

void visit_all_names(const detail::StateEntry& entry, const at::Tensor& whole,
                     const std::function<void(const FullParameter&)>& visit) {
  visit({entry.name, "", entry.is_buffer(), whole});
  for (const std::string& alias : entry.aliases) {
    visit({alias, entry.name, entry.is_buffer(), whole});
  }
}

// The entry's tensor in a full state dict, under any of its names; undefined if missing.
at::Tensor find(const StateDict& dict, const detail::StateEntry& entry) {
  if (const at::Tensor* tensor = dict.find(entry.name)) {
    return *tensor;
  }
  for (const std::string& alias : entry.aliases) {
    if (const at::Tensor* tensor = dict.find(alias)) {
      return *tensor;
    }
  }
  return {};
}

// Throws, listing all faults.
void check_dict(const StateDict& dict, const std::vector<detail::StateEntry>& entries) {
  std::string faults;
  std::set<std::string> known;
  for (const detail::StateEntry& entry : entries) {
    const at::Tensor found = find(dict, entry);
    const std::string fault = entry.mismatch(found);
    faults += fault.empty() ? "" : "\n  " + fault;
    known.insert(entry.name);
    for (const std::string& alias : entry.aliases) {
      known.insert(alias);
      const at::Tensor* other = dict.find(alias);
      if (fault.empty() && other != nullptr && !other->is_same(found) &&
          !(other->sizes() == found.sizes() && at::equal(*other, found))) {
        faults += "\n  '" + alias + "' is tied to '" + entry.name + "', and has other values";
      }
    }
  }
  for (const auto& item : dict) {
    if (known.count(item.key()) == 0) {
      faults += "\n  '" + item.key() + "' is unknown to the model";
    }
  }
  if (!faults.empty()) {
    throw Error(ExitCode::BadData, "the state is not that of this model:" + faults);
  }
}

}  // namespace

void for_each_full_parameter(ShardedModule& model,
                             const std::function<void(const FullParameter&)>& visit,
                             const FullStateOptions& options) {
  check_dtype(options);
  detail::engine_of(model).step.check_whole("full_state_dict");
  detail::require_values(detail::engine_of(model).model, "full_state_dict");
  World& world = model.world();
  const bool wanted = !options.rank0_only || world.rank() == 0;
  const std::vector<int> senders = detail::senders(model);
  detail::Visits visits(world, "[for_each_full_parameter] the visitor failed");
  for (const detail::StateEntry& entry : detail::state_entries(model)) {
    const auto dtype = c10::isFloatingType(entry.original_dtype)
                           ? options.dtype.value_or(entry.original_dtype)
                           : entry.original_dtype;
    const at::Tensor whole = detail::collect(world, senders, entry, dtype, options.rank0_only);
    visits.add(entry.numel() * static_cast<int64_t>(c10::elementSize(dtype)), [&] {
      if (wanted) {
        visit_all_names(entry, whole, visit);
      }
    });
  }
  visits.finish();
}

StateDict full_state_dict(ShardedModule& model, const FullStateOptions& options) {
  StateDict dict;
  for_each_full_parameter(
      model, [&](const FullParameter& parameter) { dict.insert(parameter.name, parameter.value); },
      options);
  return dict;
}

void load_full_state_dict(ShardedModule& model, const StateDict& dict) {
  detail::engine_of(model).step.require_between_steps("load_full_state_dict");
  const std::vector<detail::StateEntry> entries = detail::state_entries(model);
  World& world = model.world();
  static_cast<void>(
      detail::agree(world, "[load_full_state_dict] loading failed", [&]() -> std::string {
        if (world.rank() == 0) {
          check_dict(dict, entries);
        }
        return "";
      }));
  load_from_rank0(model, [&](const std::string& name) {
    const at::Tensor* tensor = dict.find(name);
    return tensor == nullptr ? at::Tensor() : *tensor;
  });
}

}  // namespace sherd
