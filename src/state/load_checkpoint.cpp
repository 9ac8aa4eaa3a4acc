#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include "files/sha256.h"
#include "rendezvous/agree.h"
#include "sherd/checkpoint.h"
#include "sherd/error.h"
#include "sherd/safetensors.h"
#include "state/checkpoint_files.h"
#include "state/entries.h"
#include "step/step.h"

namespace sherd {

namespace detail {

namespace {

// The part of a tensor in a shard file that one digest of the manifest covers.
struct ShardBlock {
  const SafetensorsFile* file = nullptr;
  const SafetensorsEntry* entry = nullptr;
  Range elements;  // of the tensor in the file
  std::string sha256;
};

[[noreturn]] void damaged(const SafetensorsFile& file, const std::string& name,
                          const std::string& how) {
  throw Error(ExitCode::BadData, file.path() + ": tensor '" + name + "' " + how +
                                     ". The checkpoint is damaged; resume from an older one.");
}

int64_t element_bytes(const SafetensorsEntry& entry) {
  return static_cast<int64_t>(c10::elementSize(entry.dtype));
}

Range common(const Range& a, const Range& b) {
  return {std::max(a.begin, b.begin), std::min(a.end, b.end)};
}

// Reads the whole block and checks its digest. `wanted` is a range of the tensor's elements; those
// that lie in the block are converted into `out` [wanted.size()], a host tensor, before the digest
// is known: `out` must not be used after an Error. Safe from several threads. Memory: 1 MiB. Throws
// Error(BadData), naming file, tensor and elements.
void read_verified(const ShardBlock& block, const Range& wanted, const at::Tensor& out) {
  constexpr int64_t kChunkBytes = int64_t{1} << 20;
  // Chunks that the disk reads while one is hashed: threads that share a file look random to the
  // kernel's own readahead.
  constexpr int64_t kAhead = 4;
  const at::NoGradGuard no_grad;
  const SafetensorsEntry& entry = *block.entry;
  const int64_t end = block.elements.end;
  const int64_t at_a_time = kChunkBytes / element_bytes(entry);
  const auto buffer = std::make_unique_for_overwrite<double[]>(kChunkBytes / sizeof(double));
  files::Sha256 digest;
  for (int64_t first = block.elements.begin; first < end; first += at_a_time) {
    const Range chunk{first, std::min(first + at_a_time, end)};
    const int64_t prefetched = first == block.elements.begin ? 0 : kAhead;
    block.file->prefetch(entry, std::min(chunk.end + prefetched * at_a_time, end),
                         std::min(chunk.end + (kAhead + 1) * at_a_time, end));
    block.file->read_elements(entry, chunk.begin, chunk.end, entry.dtype, buffer.get());
    digest.add(buffer.get(), static_cast<size_t>(chunk.size() * element_bytes(entry)));
    const Range copied = common(chunk, wanted);
    if (copied.size() > 0) {
      const at::Tensor read = at::from_blob(buffer.get(), {chunk.size()}, entry.dtype);
      out.narrow(0, copied.begin - wanted.begin, copied.size())
          .copy_(read.narrow(0, copied.begin - chunk.begin, copied.size()));
    }
  }
  if (digest.finish() != block.sha256) {
    damaged(*block.file, entry.name,
            "has a different digest from that in the manifest for its elements " +
                std::to_string(block.elements.begin) + " to " + std::to_string(end));
  }
}

// The files of one checkpoint's folder, opened when first needed.
class ShardFiles {
 public:
  // `manifest`: the folder's, which must outlive it.
  ShardFiles(std::string folder, const CheckpointManifest& manifest)
      : folder_(std::move(folder)), manifest_(manifest) {}

  // Adds the blocks with any of the elements `wanted` of a piece's tensor: `kind` is "value" or one
  // of OptimizerShard. Reads the file's header alone. Throws as SafetensorsFile, and
  // Error(BadData), naming file and tensor, if the file does not match the manifest.
  void add_blocks(std::vector<ShardBlock>& blocks, const CheckpointPiece& piece,
                  const std::string& kind, const std::string& parameter, const Range& wanted) {
    const int64_t block_bytes = manifest_.block_bytes;
    const std::string path = folder_ + "/" + piece.file;
    const SafetensorsFile& file = files_.try_emplace(piece.file, path).first->second;
    const std::string name = kind + "/" + parameter;
    const SafetensorsEntry* entry = file.find(name);
    const auto digests = piece.sha256.find(kind);
    if (entry == nullptr || entry->numel() != piece.end - piece.begin ||
        digests == piece.sha256.end() ||
        static_cast<int64_t>(digests->second.size()) !=
            blocks_in(entry->numel() * element_bytes(*entry), block_bytes)) {
      damaged(file, name, "does not match the manifest");
    }
    named_.insert(piece.file + "/" + name);
    const int64_t at_a_time =
        block_bytes == 0 ? entry->numel() : block_bytes / element_bytes(*entry);
    for (int64_t i = wanted.begin / at_a_time; i * at_a_time < wanted.end; ++i) {
      const Range elements{i * at_a_time, std::min((i + 1) * at_a_time, entry->numel())};
      blocks.push_back({&file, entry, elements, digests->second[static_cast<size_t>(i)]});
    }
  }

  // Returns all blocks that the manifest names.
  [[nodiscard]] std::vector<ShardBlock> all_blocks() {
    std::vector<ShardBlock> blocks;
    for (const auto* tensors :
         {&manifest_.parameters, manifest_.buffers ? &*manifest_.buffers : nullptr}) {
      if (tensors == nullptr) {
        continue;
      }
      for (const auto& [name, tensor] : *tensors) {
        for (const CheckpointPiece& piece : tensor.pieces) {
          for (const auto& [kind, digests] : piece.sha256) {
            add_blocks(blocks, piece, kind, name, {0, piece.end - piece.begin});
          }
        }
      }
    }
    return blocks;
  }

  // Refuses a tensor of an opened file whose blocks were never requested: the manifest does not
  // name it. Throws Error(BadData).
  void check_all_named() const {
    for (const auto& [name, file] : files_) {
      for (const SafetensorsEntry& entry : file.entries()) {
        if (!named_.contains(name + "/" + entry.name)) {
          damaged(file, entry.name, "is not in the manifest");
        }
      }
    }
  }

 private:
  std::string folder_;
  const CheckpointManifest& manifest_;
  std::map<std::string, SafetensorsFile> files_;
  std::set<std::string> named_;
};

using LoadedOptimizer = CheckpointableOptimizer*;  // null: none
using Entries = std::vector<StateEntry>;

const CheckpointParameter* find_saved(const CheckpointManifest& manifest, const std::string& name) {
  const auto& tensors = manifest.buffers && !manifest.parameters.contains(name)
                            ? *manifest.buffers
                            : manifest.parameters;
  const auto found = tensors.find(name);
  return found == tensors.end() ? nullptr : &found->second;
}

void check_same_model(const std::string& folder, const CheckpointManifest& manifest,
                      const Entries& entries) {
  const auto refuse = [&](const std::string& what) {
    throw Error(ExitCode::BadData, "the checkpoint in '" + folder +
                                       "' is of another model: it has " + what +
                                       ". Load it into the model that it was made from.");
  };
  size_t parameters = 0;
  for (const StateEntry& entry : entries) {
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

// Returns true if the entry keeps its values: older checkpoints hold no buffers, those with a base
// no parameters that were frozen.
bool is_kept(const StateEntry& entry, const CheckpointManifest& manifest) {
  return entry.is_buffer()
             ? !manifest.buffers
             : manifest.base && !entry.trainable && !manifest.parameters.contains(entry.name);
}

// Returns the entries that the checkpoint restores. The other parameters must have values.
Entries entries_of(const std::string& folder, ShardedModule& model,
                   const CheckpointManifest& manifest) {
  Entries entries = state_entries(model);
  const bool is_torn = manifest.base && engine_of(model).step.torn_values().has_value();
  for (const StateEntry& entry : entries) {
    if (!entry.is_buffer() && is_kept(entry, manifest) && !*entry.has_values) {
      throw Error(ExitCode::Usage,
                  "[load_checkpoint] the checkpoint in '" + folder +
                      "' holds only parameters that were trainable, and the frozen " +
                      entry.described() + (is_torn ? " is torn" : " has no values yet") +
                      ": load the base first (load_safetensors).");
    }
  }
  std::erase_if(entries, [&](const StateEntry& entry) { return is_kept(entry, manifest); });
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

// Adds a read for each block that holds elements of the tensor, after checking its file's header.
void plan_reads(std::vector<HostWork>& reads, ShardFiles& files, const std::string& folder,
                const CheckpointManifest& manifest, const HeldTensor& tensor) {
  for (const CheckpointPiece& piece : find_saved(manifest, tensor.name)->pieces) {
    const Range held =
        common({piece.begin, piece.end}, {tensor.begin, tensor.begin + tensor.values.numel()});
    if (held.size() <= 0) {
      continue;
    }
    const Range wanted{held.begin - piece.begin, held.end - piece.begin};
    std::vector<ShardBlock> blocks;
    files.add_blocks(blocks, piece, tensor.kind, tensor.name, wanted);
    for (const ShardBlock& block : blocks) {
      if (!can_be_read_as(block.entry->dtype, tensor.values)) {
        throw Error(ExitCode::BadData,
                    "the checkpoint in '" + folder + "' is of another model: its tensor '" +
                        block.entry->name + "' holds " + std::string(block.entry->dtype_name) +
                        ", and the model's " + c10::toString(tensor.values.dtype()) +
                        ". Load it into the model that it was made from.");
      }
      const Range part = common(block.elements, wanted);
      reads.push_back(
          {tensor.values.narrow(piece.begin - tensor.begin + part.begin, part.size()),
           [block, part](int64_t, const at::Tensor& host) { read_verified(block, part, host); }});
    }
  }
}

CheckpointManifest load(const std::string& folder, ShardedModule& model,
                        LoadedOptimizer optimizer) {
  CheckpointManifest manifest;
  ShardFiles files(folder, manifest);
  Entries entries;
  std::vector<OptimizerShard> shards;
  std::vector<HostWork> reads;
  on_all_ranks(model.world(), "the checkpoint could not be read", [&] {
    manifest = CheckpointManifest::read(folder);
    entries = entries_of(folder, model, manifest);
    check_same_model(folder, manifest, entries);
    shards = shards_to_fill(folder, optimizer, manifest);
    for (const HeldTensor& tensor : held_tensors(entries, shards)) {
      plan_reads(reads, files, folder, manifest, tensor);
    }
  });
  Step& step = engine_of(model).step;
  ShardWriter writer(step, "load_checkpoint");
  if (optimizer != nullptr) {
    step.writing_begins(State::Optimizer, "load_checkpoint");
  }
  fill_entries(model.world(), entries, reads, "the checkpoint", folder);
  if (optimizer != nullptr) {
    optimizer->restore(manifest.optimizer_steps, shards);
    step.writing_ended(State::Optimizer);
  }
  model.zero_grad();
  writer.publish();
  return manifest;
}

}  // namespace

}  // namespace detail

CheckpointManifest load_checkpoint(ShardedModule& model, CheckpointableOptimizer& optimizer,
                                   const std::string& folder) {
  return detail::load(folder, model, &optimizer);
}

CheckpointManifest load_checkpoint(ShardedModule& model, const std::string& folder) {
  return detail::load(folder, model, nullptr);
}

CheckpointManifest verify_checkpoint(const std::string& folder) {
  CheckpointManifest manifest = CheckpointManifest::read(folder);
  detail::ShardFiles files(folder, manifest);
  const std::vector<detail::ShardBlock> blocks = files.all_blocks();
  files.check_all_named();
  detail::in_parallel(blocks.size(), [&](size_t i) { read_verified(blocks[i], {}, {}); });
  return manifest;
}

CheckpointManifest require_checkpoint_files(const std::string& folder) {
  CheckpointManifest manifest = CheckpointManifest::read(folder);
  static_cast<void>(detail::ShardFiles(folder, manifest).all_blocks());
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
  detail::ShardFiles files(folder, manifest);
  std::vector<detail::ShardBlock> blocks;
  for (const CheckpointPiece& piece : found->second.pieces) {
    files.add_blocks(blocks, piece, "value", name, {0, piece.end - piece.begin});
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
