#include <algorithm>
#include <chrono>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <system_error>

#include <nlohmann/json.hpp>

#include "files/folder.h"
#include "files/output.h"
#include "files/sha256.h"
#include "rendezvous/agree.h"
#include "sherd/checkpoint.h"
#include "sherd/error.h"
#include "sherd/safetensors.h"
#include "state/checkpoint_files.h"
#include "state/entries.h"
#include "state/host_work.h"
#include "step/engine.h"

namespace sherd {

namespace {

using nlohmann::json;

// The tensors of one parameter or buffer that this rank writes, by kind.
struct HeldPiece {
  std::string name;
  int64_t begin = 0;
  int64_t end = 0;
  std::map<std::string, detail::ShardValues> tensors;
};

using SavedOptimizer = const CheckpointableOptimizer*;  // null: none

// Those that the checkpoint holds.
std::vector<detail::StateEntry> saved_entries(ShardedModule& model,
                                              const CheckpointContents& contents) {
  std::vector<detail::StateEntry> entries = detail::state_entries(model);
  if (contents.base) {
    std::erase_if(entries, [](const detail::StateEntry& entry) { return !entry.trainable; });
  }
  return entries;
}

std::vector<HeldPiece> held_pieces(ShardedModule& model, SavedOptimizer optimizer,
                                   const CheckpointContents& contents) {
  const std::map<std::string, OptimizerShard> shards = shards_of(optimizer);
  const bool writes_buffers = detail::engine_of(model).model.mesh.shard_rank() == 0;
  std::vector<HeldPiece> held;
  for (const detail::StateEntry& entry : saved_entries(model, contents)) {
    if (entry.mine.numel() == 0 || (entry.is_buffer() && !writes_buffers)) {
      continue;
    }
    HeldPiece& piece =
        held.emplace_back(HeldPiece{entry.name, entry.begin, entry.begin + entry.mine.numel(), {}});
    if (const auto shard = shards.find(entry.name); shard != shards.end()) {
      for (const auto& [kind, tensor] : shard->second.tensors) {
        piece.tensors[kind] = detail::ShardValues(tensor).resting(shard->second.use);
      }
    }
    piece.tensors["value"] = entry.mine;
  }
  return held;
}

// Others wait as long for one write or fsync of a slow disk or file server.
constexpr std::chrono::seconds kSlowestWrite{60};
// Made durable at a time, so that no fsync is longer.
constexpr int64_t kDurableBytes = int64_t{256} << 20;

// Makes a file durable part by part, and reports that. All threads of a rank add to it.
class ReportedWrites {
 public:
  ReportedWrites(const WorkPhase& phase, SafetensorsWriter& writer)
      : phase_(phase), writer_(writer) {}
  void add(int64_t bytes) {
    const std::lock_guard lock(mutex_);
    written_ += bytes;
    if (written_ - durable_ >= kDurableBytes) {
      writer_.sync();
      durable_ = written_;
    }
    phase_.report(std::to_string(written_ >> 20) + " of " +
                  std::to_string(writer_.file_bytes() >> 20) + " MiB");
  }

 private:
  const WorkPhase& phase_;
  SafetensorsWriter& writer_;
  std::mutex mutex_;
  int64_t written_ = 0;
  int64_t durable_ = 0;
};

using Digests = std::vector<std::string>;  // by block

// Writes a part of a tensor, which begins at its byte `first_byte`, and adds it to `digest`.
void write_part(SafetensorsWriter& writer, ReportedWrites& written, const std::string& name,
                int64_t first_byte, const at::Tensor& part, files::Sha256& digest) {
  constexpr size_t kChunkBytes = size_t{1} << 20;  // is still in the cache when it is written
  const auto* bytes = static_cast<const char*>(part.const_data_ptr());
  for (size_t first = 0; first < part.nbytes(); first += kChunkBytes) {
    const size_t count = std::min(kChunkBytes, part.nbytes() - first);
    digest.add(bytes + first, count);
    writer.write_at(name, static_cast<uint64_t>(first_byte) + first, bytes + first, count);
    written.add(static_cast<int64_t>(count));
  }
}

// Adds the writing of each block of a tensor; `digests` gets one digest per block.
void plan_writes(SafetensorsWriter& writer, ReportedWrites& written, const std::string& name,
                 const detail::ShardValues& values, Digests& digests,
                 std::vector<detail::HostWork>& writes) {
  const auto element = static_cast<int64_t>(c10::elementSize(values.dtype()));
  const int64_t at_a_time = kDigestBlockBytes / element;
  digests.resize(
      static_cast<size_t>(detail::blocks_in(values.numel() * element, kDigestBlockBytes)));
  for (size_t i = 0; i < digests.size(); ++i) {
    const int64_t begin = static_cast<int64_t>(i) * at_a_time;
    const int64_t numel = std::min(at_a_time, values.numel() - begin);
    writes.push_back({values.narrow(begin, numel), [&, name, begin, numel, element, i,
                                                    digest = std::make_shared<files::Sha256>()](
                                                       int64_t first, const at::Tensor& part) {
                        write_part(writer, written, name, (begin + first) * element, part, *digest);
                        if (first + part.numel() == numel) {
                          digests[i] = digest->finish();
                        }
                      }});
  }
}

// Writes this rank's file and returns its pieces as JSON, by name.
json write_shard(const World& world, const std::string& folder, const std::string& file,
                 const std::vector<HeldPiece>& held) {
  std::vector<SafetensorsSpec> specs;
  for (const HeldPiece& piece : held) {
    for (const auto& [kind, values] : piece.tensors) {
      specs.push_back({kind + "/" + piece.name, values.dtype(), {values.numel()}});
    }
  }
  const WorkPhase phase(world, "writing " + file, kSlowestWrite);
  SafetensorsWriter writer(folder + "/" + file, specs);
  ReportedWrites written(phase, writer);
  std::map<std::string, std::map<std::string, Digests>> digests;  // by name and kind
  std::vector<detail::HostWork> writes;
  for (const HeldPiece& piece : held) {
    for (const auto& [kind, values] : piece.tensors) {
      plan_writes(writer, written, kind + "/" + piece.name, values, digests[piece.name][kind],
                  writes);
    }
  }
  detail::on_host_in_parallel(writes, detail::HostUse::Reads);
  writer.finish();
  json pieces = json::object();
  for (const HeldPiece& piece : held) {
    pieces[piece.name] = {
        {"begin", piece.begin}, {"end", piece.end}, {"sha256", digests.at(piece.name)}};
  }
  return pieces;
}

// Shapes, and the updates of each parameter where they are not those of the optimizer.
CheckpointManifest describe(ShardedModule& model, SavedOptimizer optimizer,
                            const CheckpointContents& contents) {
  CheckpointManifest manifest;
  manifest.base = contents.base;
  manifest.optimizer_steps = optimizer == nullptr ? 0 : optimizer->steps_done();
  manifest.buffers.emplace();
  for (const detail::StateEntry& entry : saved_entries(model, contents)) {
    (entry.is_buffer() ? *manifest.buffers : manifest.parameters)[entry.name].shape = entry.shape;
  }
  for (const auto& [name, shard] : shards_of(optimizer)) {
    if (shard.steps != manifest.optimizer_steps) {
      manifest.parameters.at(name).optimizer_steps = shard.steps;
    }
  }
  return manifest;
}

// `ranks`: what write_shard() returned on each.
void add_pieces(CheckpointManifest& manifest, int shard_size,
                const std::vector<std::string>& ranks) {
  manifest.world_size = static_cast<int64_t>(ranks.size());
  for (int rank = 0; rank < shard_size; ++rank) {  // pieces are listed in rank order
    const std::string file = detail::shard_file_name(rank, shard_size);
    const json pieces = json::parse(ranks[static_cast<size_t>(rank)]);
    for (const auto& [name, piece] : pieces.items()) {
      const auto parameter = manifest.parameters.find(name);
      CheckpointParameter& tensor =
          parameter != manifest.parameters.end() ? parameter->second : manifest.buffers->at(name);
      tensor.pieces.push_back({file, piece["begin"].get<int64_t>(), piece["end"].get<int64_t>(),
                               piece["sha256"].get<std::map<std::string, Digests>>()});
    }
  }
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
    static_cast<void>(detail::agree(world, failure, [&]() -> std::string {
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
      return "";
    }));
    const std::vector<std::string> ranks = detail::agree(world, failure, [&] {
      if (mesh.replicate_rank() != 0) {
        return std::string();  // the first row writes the same
      }
      const std::string file = detail::shard_file_name(mesh.shard_rank(), mesh.shard_size());
      std::string pieces =
          write_shard(world, temporary, file, held_pieces(model, optimizer, contents)).dump();
      detail::rest(detail::engine_of(model).model);
      return pieces;
    });
    static_cast<void>(detail::agree(world, failure, [&]() -> std::string {
      if (first) {
        const WorkPhase phase(world, "writing the manifest of " + target, kSlowestWrite);
        CheckpointManifest manifest = describe(model, optimizer, contents);
        manifest.note = note;
        add_pieces(manifest, mesh.shard_size(), ranks);
        files::write_file(temporary + "/" + detail::kManifestName, detail::to_json(manifest));
        files::replace_folder(temporary, target);
      }
      return "";
    }));
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
