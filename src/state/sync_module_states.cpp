#include <set>
#include <sstream>
#include <string>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>

#include "rendezvous/agree.h"
#include "sherd/error.h"
#include "sherd/state_dict.h"
#include "state/transfer.h"
#include "step/autograd_hooks.h"
#include "storage/own_work.h"

namespace sherd {

namespace {

using NamedTensor = std::pair<std::string, at::Tensor>;

// Parameters and buffers, tied ones once.
std::vector<NamedTensor> states_of(const torch::nn::Module& module) {
  std::vector<NamedTensor> states;
  std::set<const c10::TensorImpl*> seen;
  const auto add = [&](const std::string& kind, const auto& named) {
    for (const auto& item : named) {
      if (item.value().defined() && seen.insert(item.value().unsafeGetTensorImpl()).second) {
        states.emplace_back(kind + " '" + item.key() + "'", item.value());
      }
    }
  };
  add("parameter", module.named_parameters());
  add("buffer", module.named_buffers());
  return states;
}

void check_has_values(const NamedTensor& state) {
  if (state.second.is_meta()) {
    throw Error(ExitCode::Usage, "[sync_module_states] " + state.first +
                                     " is on the meta device: shard the module, and give it rank "
                                     "0's values by load_from_rank0.");
  }
  if (detail::is_sharded(state.second)) {
    throw Error(ExitCode::Usage, "[sync_module_states] " + state.first +
                                     " is sharded: call it before fully_shard, or give the sharded "
                                     "model rank 0's values by load_from_rank0.");
  }
}

std::string described(const std::vector<NamedTensor>& states) {
  std::string text;
  for (const auto& [name, tensor] : states) {
    text += name + ": shape " + c10::str(tensor.sizes()) + ", " +
            c10::toString(tensor.scalar_type()) + "\n";
  }
  return text;
}

// Throws on every rank if one rank's states have no values here, or differ from rank 0's in name,
// shape or dtype.
void check_agreement(World& world, const std::vector<NamedTensor>& states) {
  const std::vector<std::string> all =
      detail::agree(world, "rank 0's values cannot be sent to all ranks", [&] {
        for (const NamedTensor& state : states) {
          check_has_values(state);
        }
        return described(states);
      });
  for (size_t rank = 1; rank < all.size(); ++rank) {
    std::istringstream expected(all[0]);
    std::istringstream found(all[rank]);
    std::string expected_line;
    std::string found_line;
    while (expected || found) {
      std::getline(expected, expected_line);
      std::getline(found, found_line);
      if (expected_line != found_line) {
        throw Error(ExitCode::RanksDisagree,
                    "[sync_module_states] ranks disagree. Rank 0 has " +
                        (expected_line.empty() ? "nothing more" : expected_line) + "; rank " +
                        std::to_string(rank) + " has " +
                        (found_line.empty() ? "nothing more" : found_line) +
                        ". Build the same module on all ranks.");
      }
    }
  }
}

}  // namespace

void sync_module_states(torch::nn::Module& module, World& world) {
  const std::vector<NamedTensor> states = states_of(module);
  check_agreement(world, states);
  const at::NoGradGuard no_grad;
  for (const auto& [name, tensor] : states) {
    const at::Tensor flat =
        detail::own_work([&, whole = tensor] { return whole.detach().reshape({-1}); });
    detail::broadcast_elements(world, 0, flat, flat.numel(), flat.scalar_type(),
                               [&](int64_t first, const at::Tensor& values) {
                                 if (world.rank() != 0) {
                                   flat.narrow(0, first, values.numel()).copy_(values);
                                 }
                               });
    if (!flat.is_alias_of(tensor)) {
      tensor.copy_(flat.view(tensor.sizes()));
    }
  }
}

}  // namespace sherd
