#include <algorithm>
#include <map>
#include <utility>

#include <ATen/ops/empty.h>

#include "checkpoint/agreement.h"
#include "checkpoint/shard_files.h"
#include "model/value_shards.h"
#include "sherd/checkpoint.h"
#include "sherd/error.h"
#include "sherd/safetensors.h"
#include "step/engine.h"

namespace sherd {

namespace {

constexpr int64_t kStretch = int64_t{1} << 18;  // elements read at a time: 1 MiB of fp32

// A part of a parameter that this rank holds, and where it goes.
struct Target {
  std::string kind;
  std::string name;
  int64_t begin = 0;  // elements of the parameter
  at::Tensor values;  // fp32, or the dtype of a frozen parameter
};

// Calls fill(tensor of the host), which is `out` itself where that is of the host.
template <class Fill>
void fill_through_host(const at::Tensor& out, const Fill& fill) {
  const at::Tensor host = out.is_cpu() ? out : at::empty(out.sizes(), out.scalar_type());
  fill(host);
  if (!out.is_cpu()) {
    out.copy_(host);
  }
}

std::vector<Target> targets_of(const ShardedModule& model, const AdamW& optimizer) {
  std::vector<Target> targets;
  std::map<std::string, int64_t> begins;
  for (const ParameterShard& shard : detail::value_shards(model.engine().model)) {
    begins[shard.name] = shard.begin;
    targets.push_back({"value", shard.name, shard.begin, shard.value});
  }
  for (const MomentShard& moment : optimizer.moments()) {
    const int64_t begin = begins.at(moment.name);
    targets.push_back({"exp_avg", moment.name, begin, moment.exp_avg});
    targets.push_back({"exp_avg_sq", moment.name, begin, moment.exp_avg_sq});
  }
  return targets;
}

// Calls visit(piece, first, last) for the pieces that hold elements of the target, in elements of
// the parameter.
template <class Visit>
void for_each_overlap(const CheckpointManifest& manifest, const Target& target, Visit&& visit) {
  const int64_t end = target.begin + target.values.numel();
  for (const CheckpointPiece& piece : manifest.parameters.at(target.name).pieces) {
    const int64_t first = std::max(piece.begin, target.begin);
    const int64_t last = std::min(piece.end, end);
    if (first < last) {
      visit(piece, first, last);
    }
  }
}

void check_same_model(const std::string& folder, const CheckpointManifest& manifest,
                      const ShardedModule& model) {
  const auto shards = detail::value_shards(model.engine().model);
  for (const ParameterShard& shard : shards) {
    const auto found = manifest.parameters.find(shard.name);
    if (found == manifest.parameters.end() || found->second.shape != shard.shape) {
      throw Error(
          ExitCode::BadData,
          "the checkpoint in '" + folder + "' is of another model: it has " +
              (found == manifest.parameters.end() ? "no parameter '" : "another shape of '") +
              shard.name + "'. Start with the model it was made from, or with --resume never.");
    }
  }
  if (manifest.parameters.size() != shards.size()) {
    throw Error(ExitCode::BadData,
                "the checkpoint in '" + folder + "' is of another model: it has " +
                    std::to_string(manifest.parameters.size()) + " parameters, the model " +
                    std::to_string(shards.size()) + ".");
  }
}

}  // namespace

CheckpointManifest load_checkpoint(const std::string& folder, ShardedModule& model,
                                   AdamW& optimizer) {
  CheckpointManifest manifest;
  detail::ShardFiles files(folder);
  const std::vector<Target> targets = targets_of(model, optimizer);
  const std::string failure = "the checkpoint could not be read";
  static_cast<void>(detail::agree(model.world(), failure, [&]() -> std::string {
    manifest = CheckpointManifest::read(folder);
    check_same_model(folder, manifest, model);
    for (const Target& target : targets) {
      for_each_overlap(manifest, target, [&](const CheckpointPiece& piece, int64_t, int64_t) {
        static_cast<void>(files.verified(piece, target.kind, target.name));
      });
    }
    return "";
  }));
  model.engine().step.await_readers();
  static_cast<void>(detail::agree(model.world(), failure, [&]() -> std::string {
    for (const Target& target : targets) {
      for_each_overlap(
          manifest, target, [&](const CheckpointPiece& piece, int64_t first, int64_t last) {
            const SafetensorsEntry& entry = files.verified(piece, target.kind, target.name);
            fill_through_host(target.values.narrow(0, first - target.begin, last - first),
                              [&](const at::Tensor& host) {
                                files.open(piece.file)
                                    .read_elements(entry, first - piece.begin, last - piece.begin,
                                                   host.scalar_type(), host.mutable_data_ptr());
                              });
          });
    }
    return "";
  }));
  optimizer.set_steps_done(manifest.optimizer_steps);
  model.zero_grad();
  model.publish();
  return manifest;
}

CheckpointManifest verify_checkpoint(const std::string& folder) {
  CheckpointManifest manifest = CheckpointManifest::read(folder);
  detail::ShardFiles files(folder);
  for (const auto& [name, parameter] : manifest.parameters) {
    for (const CheckpointPiece& piece : parameter.pieces) {
      for (const auto& [kind, digest] : piece.sha256) {
        static_cast<void>(files.verified(piece, kind, name));
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

void load_safetensors(ShardedModule& model, const std::string& folder,
                      const std::function<std::string(const std::string&)>& name_in_file) {
  const SafetensorsFolder weights(folder);
  std::string faults;
  std::vector<std::pair<ParameterShard, SafetensorsLocation>> sources;
  for (ParameterShard& shard : detail::value_shards(model.engine().model)) {
    const std::string name = name_in_file ? name_in_file(shard.name) : shard.name;
    const auto found = weights.find(name);
    if (!found) {
      faults += "\n  '" + name + "' is missing";
    } else if (found->entry->shape != shard.shape) {
      faults += "\n  '" + name + "' has shape " + c10::str(at::IntArrayRef(found->entry->shape)) +
                ", and the model's parameter " + c10::str(at::IntArrayRef(shard.shape));
    } else {
      sources.emplace_back(std::move(shard), *found);
    }
  }
  if (!faults.empty()) {
    throw Error(ExitCode::BadData, "the weights in '" + folder +
                                       "' are not those of this model:" + faults +
                                       "\nCheck that config.json and the weights belong together.");
  }
  model.engine().step.await_readers();
  for (auto& [shard, source] : sources) {
    const auto& from = source;
    const auto& part = shard;
    fill_through_host(part.value, [&](const at::Tensor& host) {
      from.file->read_elements(*from.entry, part.begin, part.end, host.scalar_type(),
                               host.mutable_data_ptr());
    });
  }
  model.publish();
}

}  // namespace sherd
