#pragma once
// Whole tensors of a model by name, and whether a rank's parts are the same bits.

#include <cstring>
#include <map>
#include <string>

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include "sherd/fully_shard.h"

namespace sherd::test {

using WholeState = std::map<std::string, at::Tensor>;

/// What a model in a world of one holds: flat masters, copied.
inline WholeState masters_of(const ShardedModule& model) {
  TORCH_CHECK(model.world().size() == 1, "whole only in a world of one");
  WholeState state;
  for (const ParameterShard& shard : model.parameter_shards()) {
    state[shard.name] = shard.value.clone();
  }
  return state;
}

/// Parameters and buffers of a plain module, flat, copied.
inline WholeState states_of(const torch::nn::Module& module) {
  WholeState state;
  for (const auto& item : module.named_parameters()) {
    state[item.key()] = item.value().detach().clone().reshape({-1});
  }
  for (const auto& item : module.named_buffers()) {
    state[item.key()] = item.value().detach().clone().reshape({-1});
  }
  return state;
}

inline bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.numel() == b.numel() &&
         (a.numel() == 0 || std::memcmp(a.const_data_ptr(), b.const_data_ptr(),
                                        static_cast<size_t>(a.nbytes())) == 0);
}

/// Throws, naming the parameter, unless this rank's part of each is that of `whole`, bit by bit.
inline void check_same_bits(const ShardedModule& model, const WholeState& whole) {
  for (const ParameterShard& shard : model.parameter_shards()) {
    const at::Tensor expected =
        whole.at(shard.name).narrow(0, shard.begin, shard.end - shard.begin);
    TORCH_CHECK(same_bits(expected, shard.value), shard.name, " differs on rank ",
                model.world().rank(), " of ", model.world().size());
  }
}

}  // namespace sherd::test
