#pragma once
// An optimizer of one's own: Lion (arXiv:2302.06675) over this rank's shards.

#include <map>
#include <string>
#include <utility>
#include <vector>

#include <sherd/sherd.h>

class Lion final : public sherd::CheckpointableOptimizer {
 public:
  Lion(sherd::ShardedModule model, double lr) : model_(std::move(model)), lr_(lr) {
    for (const sherd::ParameterShard& shard : model_.parameter_shards()) {
      if (shard.trainable) {
        momenta_[shard.name] = at::zeros_like(shard.value);
      }
    }
  }

  void step() {
    const at::NoGradGuard no_grad;
    model_.world().barrier();  // a late rank may still compute with the old values
    for (sherd::ParameterShard& shard : model_.parameter_shards()) {
      if (shard.trainable && shard.gradient.defined()) {
        at::Tensor& momentum = momenta_.at(shard.name);
        shard.value.sub_((0.9 * momentum + 0.1 * shard.gradient).sign(), lr_);
        momentum.mul_(0.99).add_(shard.gradient, 0.01);
      }
    }
    model_.publish();  // the next gather sees the new values
    ++steps_;
  }

  // What a checkpoint saves, asks for and gives back: one tensor per parameter.
  int64_t steps_done() const override { return steps_; }
  std::vector<sherd::OptimizerShard> state_shards() const override {
    std::vector<sherd::OptimizerShard> shards;
    for (const auto& [name, momentum] : momenta_) {
      shards.push_back({name, {{"exp_avg", momentum}}, steps_});
    }
    return shards;
  }
  std::vector<sherd::OptimizerShard> shards_to_fill(const sherd::OptimizerKinds& kinds) override {
    std::vector<sherd::OptimizerShard> shards;
    for (const auto& [name, momentum] : momenta_) {
      if (kinds.contains(name) && kinds.at(name) != std::set<std::string>{"exp_avg"}) {
        throw sherd::Error(sherd::ExitCode::BadData,
                           "another optimizer wrote the state of " + name);
      }
      shards.push_back({name, {{"exp_avg", at::zeros_like(momentum)}}, 0});
    }
    return shards;
  }
  void restore(int64_t steps, const std::vector<sherd::OptimizerShard>& shards) override {
    for (const sherd::OptimizerShard& shard : shards) {
      momenta_.at(shard.parameter) = shard.tensors.at("exp_avg");
    }
    steps_ = steps;
  }

 private:
  sherd::ShardedModule model_;
  double lr_;
  std::map<std::string, at::Tensor> momenta_;  // by parameter, each as long as this rank's shard
  int64_t steps_ = 0;
};
