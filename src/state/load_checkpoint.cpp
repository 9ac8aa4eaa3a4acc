#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include "rendezvous/agree.h"
#include "sherd/checkpoint.h"
#include "sherd/error.h"
#include "sherd/safetensors.h"
#include "state/entries.h"
#include "state/host_work.h"
#include "state/shard_files.h"
#include "step/step.h"

namespace sherd {

namespace {

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
      refuse("no " + entry.described() + (manifest.base ? ", which is trainable here" : ""));
    } else if (saved->shape != entry.shape) {
      refuse("another shape of " + entry.described());
    }
  }
  if (manifest.parameters.size() != parameters) {
    refuse(std::to_string(manifest.parameters.size()) +
           (manifest.base ? " trainable parameters, the model " : " parameters, the model ") +
           std::to_string(parameters));
  }
  const size_t buffers = entries.size() - parameters;
  if (manifest.buffers && manifest.buffers->size() != buffers) {
    refuse(std::to_string(manifest.buffers->size()) + " buffers, the model " +
           std::to_string(buffers));
  }
}

void check_saved_dtype(const std::string& folder, const SafetensorsEntry& saved,
                       const detail::ShardValues& values) {
  if (saved.dtype != values.dtype() &&
      !(c10::isFloatingType(saved.dtype) && values.is_floating_point())) {
    throw Error(ExitCode::BadData, "the checkpoint in '" + folder +
                                       "' is of another model: its tensor '" + saved.name +
                                       "' holds " + std::string(saved.dtype_name) +
                                       ", and the model's " + c10::toString(values.dtype()) +
                                       ". Load it into the model that it was made from.");
  }
}

// Whether an entry keeps its values: older checkpoints hold no buffers, those with a base no
// parameters that were frozen.
bool is_kept(const detail::StateEntry& entry, const CheckpointManifest& manifest) {
  return entry.is_buffer()
             ? !manifest.buffers
             : manifest.base && !entry.trainable && !manifest.parameters.contains(entry.name);
}

// What keeps its values must have some.
void check_base_is_loaded(const std::string& folder, const Entries& entries,
                          const CheckpointManifest& manifest, detail::Step& step) {
  if (!manifest.base) {
    return;
  }
  const bool is_torn = step.torn_values().has_value();
  for (const detail::StateEntry& entry : entries) {
    if (!entry.is_buffer() && is_kept(entry, manifest) && !*entry.has_values) {
      throw Error(ExitCode::Usage,
                  "[load_checkpoint] the checkpoint in '" + folder +
                      "' holds only parameters that were trainable, and the frozen " +
                      entry.described() + (is_torn ? " is torn" : " has no values yet") +
                      ": load the base first (load_safetensors).");
    }
  }
}

// The entries that the checkpoint restores.
Entries entries_of(const std::string& folder, ShardedModule& model,
                   const CheckpointManifest& manifest) {
  Entries entries = detail::state_entries(model);
  check_base_is_loaded(folder, entries, manifest, detail::engine_of(model).step);
  std::erase_if(entries, [&](const detail::StateEntry& entry) { return is_kept(entry, manifest); });
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

// One read per block that holds elements of a target; the files' headers have been checked.
std::vector<detail::HostWork> planned_reads(detail::ShardFiles& files, const std::string& folder,
                                            const CheckpointManifest& manifest,
                                            const std::vector<Target>& targets) {
  std::vector<detail::HostWork> reads;
  for (const Target& target : targets) {
    for_each_overlap(
        manifest, target, [&](const CheckpointPiece& piece, int64_t first, int64_t last) {
          const detail::Range wanted{first - piece.begin, last - piece.begin};
          for (const detail::ShardBlock& block :
               files.blocks(piece, target.kind, target.name, manifest.block_bytes, wanted)) {
            check_saved_dtype(folder, *block.entry, target.values);
            const detail::Range part{std::max(block.elements.begin, wanted.begin),
                                     std::min(block.elements.end, wanted.end)};
            reads.push_back(
                {target.values.narrow(piece.begin + part.begin - target.begin, part.size()),
                 [block, part](int64_t, const at::Tensor& host) {
                   read_verified(block, part, host);
                 }});
          }
        });
  }
  return reads;
}

CheckpointManifest load(const std::string& folder, ShardedModule& model,
                        LoadedOptimizer optimizer) {
  CheckpointManifest manifest;
  detail::ShardFiles files(folder);
  Entries entries;
  std::vector<OptimizerShard> shards;
  std::vector<detail::HostWork> reads;
  const std::string failure = "the checkpoint could not be read";
  static_cast<void>(detail::agree(model.world(), failure, [&]() -> std::string {
    manifest = CheckpointManifest::read(folder);
    entries = entries_of(folder, model, manifest);
    check_same_model(folder, manifest, entries);
    shards = shards_to_fill(folder, optimizer, manifest);
    reads = planned_reads(files, folder, manifest, targets_of(entries, shards));
    return "";
  }));
  detail::Step& step = detail::engine_of(model).step;
  detail::ShardWriter writer(step, "load_checkpoint");
  for (detail::StateEntry& entry : entries) {
    entry.begin_writing();
  }
  if (optimizer != nullptr) {
    step.writing_begins(detail::State::Optimizer, "load_checkpoint");
  }
  static_cast<void>(detail::agree(model.world(), failure, [&]() -> std::string {
    const WorkPhase reading(model.world(), "reading the checkpoint in " + folder,
                            detail::kLongestRead);
    detail::on_host_in_parallel(reads, detail::HostUse::Fills);
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
  std::vector<detail::ShardBlock> blocks;
  for (const auto* tensors :
       {&manifest.parameters, manifest.buffers ? &*manifest.buffers : nullptr}) {
    if (tensors == nullptr) {
      continue;
    }
    for (const auto& [name, tensor] : *tensors) {
      for (const CheckpointPiece& piece : tensor.pieces) {
        for (const auto& [kind, digests] : piece.sha256) {
          std::ranges::move(
              files.blocks(piece, kind, name, manifest.block_bytes, {0, piece.end - piece.begin}),
              std::back_inserter(blocks));
        }
      }
    }
  }
  files.check_all_named();
  detail::in_parallel(blocks.size(), [&](size_t i) { read_verified(blocks[i], {}, {}); });
  return manifest;
}

void read_checkpoint_values(const std::string& folder, const CheckpointManifest& manifest,
                            const std::string& name,
                            const std::function<void(const float* values, int64_t numel)>& take) {
  const auto found = manifest.parameters.find(name);
  if (found == manifest.parameters.end()) {
    throw Error(ExitCode::BadData,
                "the checkpoint in '" + folder + "' has no parameter '" + name + "'" +
                    (manifest.base ? ": it holds only parameters that were trainable. Read it "
                                     "from the base."
                                   : "."));
  }
  detail::ShardFiles files(folder);
  std::vector<detail::ShardBlock> blocks;
  for (const CheckpointPiece& piece : found->second.pieces) {
    std::ranges::move(
        files.blocks(piece, "value", name, manifest.block_bytes, {0, piece.end - piece.begin}),
        std::back_inserter(blocks));
  }
  const size_t at_a_time = static_cast<size_t>(std::min(at::get_num_threads(), 4));
  for (size_t first = 0; first < blocks.size(); first += at_a_time) {
    std::vector<at::Tensor> values;
    for (size_t i = first; i < std::min(first + at_a_time, blocks.size()); ++i) {
      values.push_back(at::empty({blocks[i].elements.size()}, at::kFloat));
    }
    detail::in_parallel(values.size(), [&](size_t i) {
      read_verified(blocks[first + i], blocks[first + i].elements, values[i]);
    });
    for (const at::Tensor& part : values) {
      take(part.const_data_ptr<float>(), part.numel());
    }
  }
}

}  // namespace sherd
