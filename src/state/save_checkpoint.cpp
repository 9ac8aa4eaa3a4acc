#include <algorithm>
#include <chrono>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <system_error>

#include "files/folder.h"
#include "files/output.h"
#include "files/sha256.h"
#include "rendezvous/agree.h"
#include "sherd/checkpoint.h"
#include "sherd/error.h"
#include "sherd/safetensors.h"
#include "state/checkpoint_files.h"
#include "state/entries.h"
#include "step/step.h"

namespace sherd {

namespace {

using detail::HeldTensor;
using nlohmann::json;

using Digests = std::vector<std::string>;               // by block
using SavedOptimizer = const CheckpointableOptimizer*;  // null: none

// Returns the entries that the checkpoint holds.
std::vector<detail::StateEntry> saved_entries(ShardedModule& model,
                                              const CheckpointContents& contents) {
  std::vector<detail::StateEntry> entries = detail::state_entries(model);
  if (contents.base) {
    std::erase_if(entries, [](const detail::StateEntry& entry) { return !entry.trainable; });
  }
  return entries;
}

std::vector<OptimizerShard> shards_of(SavedOptimizer optimizer) {
  return optimizer == nullptr ? std::vector<OptimizerShard>() : optimizer->state_shards();
}

// Returns what this rank writes: the first one, the buffers.
std::vector<HeldTensor> written_tensors(ShardedModule& model, SavedOptimizer optimizer,
                                        const CheckpointContents& contents) {
  std::vector<detail::StateEntry> entries = saved_entries(model, contents);
  if (detail::engine_of(model).model.mesh.shard_rank() != 0) {
    std::erase_if(entries, [](const detail::StateEntry& entry) { return entry.is_buffer(); });
  }
  return detail::held_tensors(entries, shards_of(optimizer));
}

// The longest time of one write or fsync on a slow disk or file server: other ranks wait as long.
constexpr std::chrono::seconds kSlowestWrite{60};

// Writes a file, makes it durable part by part, and reports progress. Safe from several threads.
class ReportedWriter {
 public:
  ReportedWriter(const WorkPhase& phase, SafetensorsWriter& writer)
      : phase_(phase), writer_(writer) {}

  // Writes a part of a tensor from its byte `first_byte` on, and adds it to `digest`.
  void write(const std::string& name, int64_t first_byte, const at::Tensor& part,
             files::Sha256& digest) {
    constexpr size_t kChunkBytes = size_t{1} << 20;  // is still in the cache when it is written
    const auto* bytes = static_cast<const char*>(part.const_data_ptr());
    for (size_t first = 0; first < part.nbytes(); first += kChunkBytes) {
      const size_t count = std::min(kChunkBytes, part.nbytes() - first);
      digest.add(bytes + first, count);
      writer_.write_at(name, static_cast<uint64_t>(first_byte) + first, bytes + first, count);
      add(static_cast<int64_t>(count));
    }
  }

 private:
  void add(int64_t bytes) {
    constexpr int64_t kDurableBytes = int64_t{256} << 20;  // limits the time of one fsync
    const std::lock_guard lock(mutex_);
    written_ += bytes;
    if (written_ - durable_ >= kDurableBytes) {
      writer_.sync();
      durable_ = written_;
    }
    phase_.report(std::to_string(written_ >> 20) + " of " +
                  std::to_string(writer_.file_bytes() >> 20) + " MiB");
  }

  const WorkPhase& phase_;
  SafetensorsWriter& writer_;
  std::mutex mutex_;
  int64_t written_ = 0;
  int64_t durable_ = 0;
};

// Adds the writing of each block of a tensor, which also computes its digest.
void plan_writes(ReportedWriter& writer, const HeldTensor& held, Digests& digests,
                 std::vector<detail::HostWork>& writes) {
  const auto element = static_cast<int64_t>(c10::elementSize(held.values.dtype()));
  const int64_t at_a_time = kDigestBlockBytes / element;
  digests.resize(
      static_cast<size_t>(detail::blocks_in(held.values.numel() * element, kDigestBlockBytes)));
  for (size_t i = 0; i < digests.size(); ++i) {
    const int64_t begin = static_cast<int64_t>(i) * at_a_time;
    const int64_t numel = std::min(at_a_time, held.values.numel() - begin);
    writes.push_back({held.values.narrow(begin, numel),
                      [&, begin, numel, element, i, digest = std::make_shared<files::Sha256>()](
                          int64_t first, const at::Tensor& part) {
                        writer.write(held.kind + "/" + held.name, (begin + first) * element, part,
                                     *digest);
                        if (first + part.numel() == numel) {
                          digests[i] = digest->finish();
                        }
                      }});
  }
}

using Pieces = std::map<std::string, CheckpointPiece>;  // by name

// Writes this rank's file and returns its pieces.
Pieces write_shard(const World& world, const std::string& folder, const std::string& file,
                   const std::vector<HeldTensor>& held) {
  std::vector<SafetensorsSpec> specs;
  for (const HeldTensor& tensor : held) {
    specs.push_back(
        {tensor.kind + "/" + tensor.name, tensor.values.dtype(), {tensor.values.numel()}});
  }
  const WorkPhase phase(world, "writing " + file, kSlowestWrite);
  SafetensorsWriter writer(folder + "/" + file, specs);
  ReportedWriter reported(phase, writer);
  std::vector<detail::HostWork> writes;
  std::vector<Digests> digests(held.size());
  for (size_t i = 0; i < held.size(); ++i) {
    plan_writes(reported, held[i], digests[i], writes);
  }
  detail::on_host_in_parallel(writes, detail::HostUse::Reads);
  writer.finish();
  Pieces pieces;
  for (size_t i = 0; i < held.size(); ++i) {
    CheckpointPiece& piece = pieces[held[i].name];
    piece.file = file;
    piece.begin = held[i].begin;
    piece.end = held[i].begin + held[i].values.numel();
    piece.sha256[held[i].kind] = digests[i];
  }
  return pieces;
}

// Returns all but the note. `ranks`: what write_shard() returned on each rank, as JSON.
CheckpointManifest describe(ShardedModule& model, SavedOptimizer optimizer,
                            const CheckpointContents& contents,
                            const std::vector<std::string>& ranks) {
  CheckpointManifest manifest;
  manifest.world_size = static_cast<int64_t>(ranks.size());
  manifest.optimizer_steps = optimizer == nullptr ? 0 : optimizer->steps_done();
  manifest.base = contents.base;
  manifest.buffers.emplace();
  for (const detail::StateEntry& entry : saved_entries(model, contents)) {
    (entry.is_buffer() ? *manifest.buffers : manifest.parameters)[entry.name].shape = entry.shape;
  }
  for (const OptimizerShard& shard : shards_of(optimizer)) {
    if (shard.steps != manifest.optimizer_steps) {
      manifest.parameters.at(shard.parameter).optimizer_steps = shard.steps;
    }
  }
  const int shard_size = detail::engine_of(model).model.mesh.shard_size();
  for (int rank = 0; rank < shard_size; ++rank) {  // pieces are listed in rank order
    for (const auto& [name, piece] : json::parse(ranks[static_cast<size_t>(rank)]).get<Pieces>()) {
      auto& tensors = manifest.parameters.contains(name) ? manifest.parameters : *manifest.buffers;
      tensors.at(name).pieces.push_back(piece);
    }
  }
  return manifest;
}

void save(const std::string& folder, ShardedModule& model, SavedOptimizer optimizer,
          const std::string& note, const CheckpointContents& contents) {
  detail::engine_of(model).step.check_whole("save_checkpoint");
  World& world = model.world();
  const Mesh& mesh = detail::engine_of(model).model.mesh;
  std::string target;
  std::string temporary;
  const std::string failure = "the checkpoint could not be written";
  const bool first = world.rank() == 0;
  bool begun = false;
  try {
    detail::on_all_ranks(world, failure, [&] {
      target = detail::checkpoint_path(folder);
      temporary = target + ".tmp";
      if (first) {
        for (const char* end : {"", ".tmp", ".old"}) {  // replacing it may remove these
          detail::check_replaceable(target + end);
        }
        begun = true;
        const WorkPhase phase(world, "making " + temporary, kSlowestWrite);
        files::remove_folder(temporary);
        files::make_folder(temporary);
      }
    });
    const std::vector<std::string> ranks = detail::agree(world, failure, [&] {
      if (mesh.replicate_rank() != 0) {
        return std::string();  // the first row writes the same
      }
      const std::string file = detail::shard_file_name(mesh.shard_rank(), mesh.shard_size());
      const json pieces =
          write_shard(world, temporary, file, written_tensors(model, optimizer, contents));
      detail::rest(detail::engine_of(model).model);
      return pieces.dump();
    });
    detail::on_all_ranks(world, failure, [&] {
      if (first) {
        const WorkPhase phase(world, "writing the manifest of " + target, kSlowestWrite);
        CheckpointManifest manifest = describe(model, optimizer, contents, ranks);
        manifest.note = note;
        files::write_file(temporary + "/" + detail::kManifestName, detail::to_json(manifest));
        files::replace_folder(temporary, target);
      }
    });
  } catch (const Error& error) {
    if (begun && !error.is_of_peers()) {
      std::error_code ignored;  // the first failure is reported
      std::filesystem::remove_all(temporary, ignored);
    }
    throw;
  }
}

}  // namespace

void save_checkpoint(ShardedModule& model, const CheckpointableOptimizer& optimizer,
                     const std::string& folder, const std::string& note,
                     const CheckpointContents& contents) {
  save(folder, model, &optimizer, note, contents);
}

void save_checkpoint(ShardedModule& model, const std::string& folder, const std::string& note,
                     const CheckpointContents& contents) {
  save(folder, model, nullptr, note, contents);
}

}  // namespace sherd
