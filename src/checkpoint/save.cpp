#include <filesystem>
#include <map>
#include <system_error>

#include <nlohmann/json.hpp>

#include "checkpoint/agreement.h"
#include "checkpoint/files.h"
#include "checkpoint/manifest.h"
#include "files/folder.h"
#include "files/output.h"
#include "files/sha256.h"
#include "model/value_shards.h"
#include "sherd/checkpoint.h"
#include "sherd/error.h"
#include "sherd/safetensors.h"
#include "step/engine.h"

namespace sherd {

namespace {

using nlohmann::json;

// One parameter's tensors on this rank, by kind.
struct HeldParameter {
  ParameterShard shard;
  std::map<std::string, at::Tensor> tensors;
};

std::vector<HeldParameter> held_parameters(const ShardedModule& model, const AdamW& optimizer) {
  std::map<std::string, MomentShard> moments;
  for (MomentShard& moment : optimizer.moments()) {
    moments.emplace(moment.name, std::move(moment));
  }
  std::vector<HeldParameter> held;
  for (ParameterShard& shard : detail::value_shards(model.engine().model)) {
    if (shard.begin == shard.end) {
      continue;
    }
    HeldParameter parameter{shard, {{"value", shard.value}}};
    if (const auto found = moments.find(shard.name); found != moments.end()) {
      parameter.tensors["exp_avg"] = found->second.exp_avg;
      parameter.tensors["exp_avg_sq"] = found->second.exp_avg_sq;
    }
    held.push_back(std::move(parameter));
  }
  return held;
}

// Writes this rank's file and answers its pieces as JSON, by parameter.
json write_shard(const std::string& folder, const std::string& file,
                 const std::vector<HeldParameter>& held) {
  std::vector<SafetensorsSpec> specs;
  for (const HeldParameter& parameter : held) {
    for (const auto& [kind, tensor] : parameter.tensors) {
      specs.push_back({kind + "/" + parameter.shard.name, tensor.scalar_type(), {tensor.numel()}});
    }
  }
  SafetensorsWriter writer(folder + "/" + file, specs);
  json pieces = json::object();
  for (const HeldParameter& parameter : held) {
    json digests = json::object();
    for (const auto& [kind, held_tensor] : parameter.tensors) {
      const at::Tensor tensor = held_tensor.cpu();
      const auto bytes = static_cast<size_t>(tensor.nbytes());
      files::Sha256 digest;
      digest.add(tensor.const_data_ptr(), bytes);
      writer.write(kind + "/" + parameter.shard.name, tensor.const_data_ptr(), bytes);
      digests[kind] = digest.finish();
    }
    pieces[parameter.shard.name] = {
        {"begin", parameter.shard.begin}, {"end", parameter.shard.end}, {"sha256", digests}};
  }
  writer.finish();
  return pieces;
}

CheckpointManifest assemble(const ShardedModule& model, const AdamW& optimizer,
                            const std::string& note, const std::vector<std::string>& ranks) {
  CheckpointManifest manifest;
  const int pieces_of_a_copy = model.engine().model.mesh.shard_size();
  manifest.world_size = static_cast<int64_t>(ranks.size());
  manifest.optimizer_steps = optimizer.steps_done();
  manifest.note = note;
  for (const ParameterShard& shard : detail::value_shards(model.engine().model)) {
    manifest.parameters[shard.name].shape = shard.shape;
  }
  for (int rank = 0; rank < pieces_of_a_copy; ++rank) {  // a parameter's pieces lie in rank order
    const std::string file = detail::shard_file_name(rank, pieces_of_a_copy);
    const json pieces = json::parse(ranks[static_cast<size_t>(rank)]);
    for (const auto& [name, piece] : pieces.items()) {
      manifest.parameters[name].pieces.push_back(
          {file, piece["begin"].get<int64_t>(), piece["end"].get<int64_t>(),
           piece["sha256"].get<std::map<std::string, std::string>>()});
    }
  }
  return manifest;
}

}  // namespace

void save_checkpoint(const std::string& folder, ShardedModule& model, const AdamW& optimizer,
                     const std::string& note) {
  World& world = model.world();
  const Mesh& mesh = model.engine().model.mesh;
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
        for (const char* end : {"", ".tmp", ".old"}) {  // what replacing it may remove
          detail::check_replaceable(target + end);
        }
        begun = true;
        files::remove_folder(temporary);
        files::make_folder(temporary);
      }
      return "";
    }));
    const std::vector<std::string> ranks = detail::agree(world, failure, [&] {
      if (mesh.replicate_rank() != 0) {
        return std::string();  // a copy of what the first row writes
      }
      const std::string file = detail::shard_file_name(mesh.shard_rank(), mesh.shard_size());
      return write_shard(temporary, file, held_parameters(model, optimizer)).dump();
    });
    static_cast<void>(detail::agree(world, failure, [&]() -> std::string {
      if (first) {
        const CheckpointManifest manifest = assemble(model, optimizer, note, ranks);
        files::write_file(temporary + "/" + detail::kManifestName, detail::to_json(manifest));
        files::replace_folder(temporary, target);
      }
      return "";
    }));
  } catch (const Error& error) {
    if (begun && !error.is_of_peers()) {
      std::error_code ignored;  // the first failure is the one to tell
      std::filesystem::remove_all(temporary, ignored);
    }
    throw;
  }
}

}  // namespace sherd
