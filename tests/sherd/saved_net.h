#pragma once
// A small net that is trained, saved and loaded on any number of ranks, and its whole state.

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include "sherd/checkpoint.h"
#include "sherd/fully_shard.h"
#include "tests/support/ranks.h"
#include "tests/support/small_net.h"

namespace sherd::test {

namespace fs = std::filesystem;
using Model = Sharded<Net>;

inline constexpr const char* kNote = "{\"step\": 3, \"text\": \"Größe\"}";

/// Whole flattened values, exp_avg and exp_avg_sq of a model, put together from all ranks.
class State {
 public:
  void add(const Model& model, const AdamW& optimizer) {
    const std::lock_guard lock(one_at_a_time_);
    std::map<std::string, ParameterShard> shards;
    for (ParameterShard& shard : model.parameter_shards()) {
      put("value/" + shard.name, shard, shard.value);
      shards.emplace(shard.name, std::move(shard));
    }
    for (const MomentShard& moment : optimizer.moments()) {
      put("exp_avg/" + moment.name, shards.at(moment.name), moment.exp_avg);
      put("exp_avg_sq/" + moment.name, shards.at(moment.name), moment.exp_avg_sq);
    }
  }
  void add_loss(double loss) {
    const std::lock_guard lock(one_at_a_time_);
    losses_.insert(loss);
  }

  // Names of the tensors that differ, and "loss".
  [[nodiscard]] std::vector<std::string> differences(const State& other) const {
    std::vector<std::string> names;
    for (const auto& [name, tensor] : tensors_) {
      const auto found = other.tensors_.find(name);
      if (found == other.tensors_.end() || !at::equal(found->second, tensor)) {
        names.push_back(name);
      }
    }
    if (losses_ != other.losses_) {
      names.emplace_back("loss");
    }
    return names;
  }
  [[nodiscard]] size_t size() const { return tensors_.size(); }

 private:
  void put(const std::string& name, const ParameterShard& shard, const at::Tensor& part) {
    int64_t numel = 1;
    for (const int64_t size : shard.shape) {
      numel *= size;
    }
    at::Tensor& whole = tensors_.try_emplace(name, at::empty({numel})).first->second;
    whole.narrow(0, shard.begin, shard.end - shard.begin).copy_(part);
  }

  std::mutex one_at_a_time_;
  std::map<std::string, at::Tensor> tensors_;
  std::set<double> losses_;
};

inline void train(Model& model, AdamW& optimizer, int steps, int first_example) {
  for (int step = 0; step < steps; ++step) {
    const Example example = make_example(first_example + step);
    sum_of_errors(model(example.x), example.y).backward();
    optimizer.step();
    optimizer.zero_grad();
  }
}

inline double loss_of_model(Model& model) {
  const at::NoGradGuard no_grad;
  const Example example = make_example(99);
  return sum_of_errors(model(example.x), example.y).item<double>();
}

/// A bf16 model on every rank, so that what is computed with is not what is saved.
template <class Body>
void on_each_rank(int ranks, const Body& body, int layers = 3, int64_t width = 13) {
  run_ranks(ranks, [&](World world) {
    auto model = fully_shard(make_net(layers, width), Mesh::shard(world),
                             {.precision = {.param_dtype = at::kBFloat16}});
    AdamW optimizer(model, {.lr = 1e-2});
    body(model, optimizer);
  });
}

/// Saves a model after three steps; answers its state.
inline void save(int ranks, const std::string& folder, State& state, int first_example = 0) {
  on_each_rank(ranks, [&](Model& model, AdamW& optimizer) {
    train(model, optimizer, 3, first_example);
    save_checkpoint(model, optimizer, folder, kNote);
    state.add(model, optimizer);
    state.add_loss(loss_of_model(model));
  });
}

inline void load(int ranks, const std::string& folder, State& state) {
  on_each_rank(ranks, [&](Model& model, AdamW& optimizer) {
    train(model, optimizer, 1, 50);  // what was there before must not matter
    const CheckpointManifest manifest = load_checkpoint(model, optimizer, folder);
    EXPECT_EQ(manifest.note, kNote);
    EXPECT_EQ(optimizer.steps_done(), 3);
    state.add(model, optimizer);
    state.add_loss(loss_of_model(model));
  });
}

inline std::string read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline std::map<std::string, std::string> contents(const fs::path& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    files[fs::relative(entry.path(), folder).string()] =
        entry.is_regular_file() ? read_file(entry.path()) : "";
  }
  return files;
}

}  // namespace sherd::test
