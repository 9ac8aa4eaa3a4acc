#include <algorithm>
#include <map>
#include <utility>

#include "checkpoint/fill_through_host.h"
#include "checkpoint/shard_files.h"
#include "sherd/checkpoint.h"
#include "sherd/error.h"
#include "sherd/safetensors.h"
#include "state/entries.h"
#include "step/engine.h"
#include "step/shard_writer.h"
#include "world/agree.h"

namespace sherd {

namespace {

constexpr int64_t kStretch = int64_t{1} << 18;  // elements read at a time: 1 MiB of fp32

// A tensor of this rank that is read from the checkpoint.
struct Target {
  std::string kind;
  std::string name;
  int64_t begin = 0;  // elements of the whole tensor
  detail::ShardValues values;
};

using LoadedOptimizer = CheckpointableOptimizer*;  // null: none
using Entries = std::vector<detail::StateEntry>;

std::vector<Target> targets_of(const Entries& entries, const std::vector<OptimizerShard>& shards) {
  std::vector<Target> targets;
  std::map<std::string, int64_t> begins;
  for (const detail::StateEntry& entry : entries) {
    begins[entry.name] = entry.begin;
    targets.push_back({"value", entry.name, entry.begin, entry.mine});
  }
  for (const OptimizerShard& shard : shards) {
    for (const auto& [kind, tensor] : shard.tensors) {
      targets.push_back({kind, shard.parameter, begins.at(shard.parameter),
                         detail::ShardValues(tensor).resting(shard.use)});
    }
  }
  return targets;
}

const CheckpointParameter* find_saved(const CheckpointManifest& manifest, const std::string& name) {
  if (const auto found = manifest.parameters.find(name); found != manifest.parameters.end()) {
    return &found->second;
  }
  if (!manifest.buffers) {
    return nullptr;
  }
  const auto found = manifest.buffers->find(name);
  return found == manifest.buffers->end() ? nullptr : &found->second;
}

// Calls visit(piece, first, last) for the pieces that hold elements of the target, in elements of
// the parameter.
template <class Visit>
void for_each_overlap(const CheckpointManifest& manifest, const Target& target, Visit&& visit) {
  const int64_t end = target.begin + target.values.numel();
  for (const CheckpointPiece& piece : find_saved(manifest, target.name)->pieces) {
    const int64_t first = std::max(piece.begin, target.begin);
    const int64_t last = std::min(piece.end, end);
    if (first < last) {
      visit(piece, first, last);
    }
  }
}

void check_same_model(const std::string& folder, const CheckpointManifest& manifest,
                      const Entries& entries) {
  const auto refuse = [&](const std::string& what) {
    throw Error(ExitCode::BadData, "the checkpoint in '" + folder +
                                       "' is of another model: it has " + what +
                                       ". Load it into the model that it was made from.");
  };
  size_t parameters = 0;
  for (const detail::StateEntry& entry : entries) {
    parameters += entry.is_buffer() ? 0U : 1U;
    const CheckpointParameter* saved = find_saved(manifest, entry.name);
    if (saved == nullptr) {
      refuse("no " + entry.described());
    } else if (saved->shape != entry.shape) {
      refuse("another shape of " + entry.described());
    }
  }
  if (manifest.parameters.size() != parameters) {
    refuse(std::to_string(manifest.parameters.size()) + " parameters, the model " +
           std::to_string(parameters));
  }
  const size_t buffers = entries.size() - parameters;
  if (manifest.buffers && manifest.buffers->size() != buffers) {
    refuse(std::to_string(manifest.buffers->size()) + " buffers, the model " +
           std::to_string(buffers));
  }
}

// The entries that the checkpoint restores; older ones hold no buffers.
Entries entries_of(ShardedModule& model, const CheckpointManifest& manifest) {
  Entries entries = detail::state_entries(model);
  if (!manifest.buffers) {
    std::erase_if(entries, [](const detail::StateEntry& entry) { return entry.is_buffer(); });
  }
  return entries;
}

std::vector<OptimizerShard> shards_to_fill(const std::string& folder, LoadedOptimizer optimizer,
                                           const CheckpointManifest& manifest) {
  if (optimizer == nullptr) {
    return {};
  }
  OptimizerKinds kinds;
  for (const auto& [name, parameter] : manifest.parameters) {
    for (const CheckpointPiece& piece : parameter.pieces) {
      for (const auto& [kind, digest] : piece.sha256) {
        if (kind != "value") {
          kinds[name].insert(kind);
        }
      }
    }
  }
  try {
    std::vector<OptimizerShard> shards = optimizer->shards_to_fill(kinds);
    for (OptimizerShard& shard : shards) {
      shard.steps = manifest.parameters.at(shard.parameter)
                        .optimizer_steps.value_or(manifest.optimizer_steps);
    }
    return shards;
  } catch (const Error& error) {
    throw Error(error.code(),
                "the checkpoint in '" + folder + "' does not fit the optimizer: " + error.what());
  }
}

void read_into(detail::ShardFiles& files, const CheckpointManifest& manifest,
               const Target& target) {
  for_each_overlap(
      manifest, target, [&](const CheckpointPiece& piece, int64_t first, int64_t last) {
        const SafetensorsEntry& entry = files.verified(piece, target.kind, target.name);
        detail::fill_through_host(
            target.values.narrow(first - target.begin, last - first),
            [&, in_piece = first - piece.begin](int64_t begin, const at::Tensor& host) {
              files.open(piece.file)
                  .read_elements(entry, in_piece + begin, in_piece + begin + host.numel(),
                                 host.scalar_type(), host.mutable_data_ptr());
            });
      });
}

CheckpointManifest load(const std::string& folder, ShardedModule& model,
                        LoadedOptimizer optimizer) {
  CheckpointManifest manifest;
  detail::ShardFiles files(folder);
  Entries entries;
  std::vector<OptimizerShard> shards;
  std::vector<Target> targets;
  const std::string failure = "the checkpoint could not be read";
  static_cast<void>(detail::agree(model.world(), failure, [&]() -> std::string {
    manifest = CheckpointManifest::read(folder);
    entries = entries_of(model, manifest);
    check_same_model(folder, manifest, entries);
    shards = shards_to_fill(folder, optimizer, manifest);
    targets = targets_of(entries, shards);
    for (const Target& target : targets) {
      for_each_overlap(manifest, target, [&](const CheckpointPiece& piece, int64_t, int64_t) {
        static_cast<void>(files.verified(piece, target.kind, target.name));
      });
    }
    return "";
  }));
  detail::Step& step = detail::engine_of(model).step;
  detail::ShardWriter writer(step, "load_checkpoint");
  if (optimizer != nullptr) {
    step.writing_begins(detail::State::Optimizer, "load_checkpoint");
  }
  static_cast<void>(detail::agree(model.world(), failure, [&]() -> std::string {
    for (const Target& target : targets) {
      read_into(files, manifest, target);
    }
    return "";
  }));
  for (detail::StateEntry& entry : entries) {
    entry.finish_writing();
  }
  if (optimizer != nullptr) {
    optimizer->restore(manifest.optimizer_steps, shards);
    step.writing_ended(detail::State::Optimizer);
  }
  model.zero_grad();
  writer.publish();
  return manifest;
}

}  // namespace

CheckpointManifest load_checkpoint(ShardedModule& model, CheckpointableOptimizer& optimizer,
                                   const std::string& folder) {
  return load(folder, model, &optimizer);
}

CheckpointManifest load_checkpoint(ShardedModule& model, const std::string& folder) {
  return load(folder, model, nullptr);
}

CheckpointManifest verify_checkpoint(const std::string& folder) {
  CheckpointManifest manifest = CheckpointManifest::read(folder);
  detail::ShardFiles files(folder);
  for (const auto* tensors :
       {&manifest.parameters, manifest.buffers ? &*manifest.buffers : nullptr}) {
    if (tensors == nullptr) {
      continue;
    }
    for (const auto& [name, tensor] : *tensors) {
      for (const CheckpointPiece& piece : tensor.pieces) {
        for (const auto& [kind, digest] : piece.sha256) {
          static_cast<void>(files.verified(piece, kind, name));
        }
      }
    }
  }
  files.check_all_verified();
  return manifest;
}

void read_checkpoint_values(const std::string& folder, const CheckpointManifest& manifest,
                            const std::string& name,
                            const std::function<void(const float* values, int64_t numel)>& take) {
  const auto found = manifest.parameters.find(name);
  if (found == manifest.parameters.end()) {
    throw Error(ExitCode::BadData,
                "the checkpoint in '" + folder + "' has no parameter '" + name + "'.");
  }
  detail::ShardFiles files(folder);
  std::vector<float> values(static_cast<size_t>(kStretch));
  for (const CheckpointPiece& piece : found->second.pieces) {
    const SafetensorsEntry& entry = files.verified(piece, "value", name);
    for (int64_t begin = 0; begin < entry.numel(); begin += kStretch) {
      const int64_t end = std::min(begin + kStretch, entry.numel());
      files.open(piece.file).read_elements(entry, begin, end, c10::kFloat, values.data());
      take(values.data(), end - begin);
    }
  }
}

}  // namespace sherd
