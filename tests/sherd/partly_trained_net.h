#pragma once
// The net of saved_net.h with most parameters frozen, whose checkpoints hold the others.

#include <algorithm>
#include <string>
#include <vector>

#include "tests/sherd/saved_net.h"

namespace sherd::test {

inline constexpr const char* kBase = "sha256:12ef";
// A whole unit, a part of another, and a part of the root are trained.
inline const std::vector<std::string> kTrained = {"block1.", "block2.down.weight", "head.bias"};

inline bool is_among(const std::string& name, const std::vector<std::string>& beginnings) {
  return std::any_of(beginnings.begin(), beginnings.end(),
                     [&](const std::string& beginning) { return name.starts_with(beginning); });
}

inline Net make_frozen_net(const std::vector<std::string>& trained, int64_t width = 13) {
  Net net = make_net(3, width);
  for (const auto& item : net->named_parameters()) {
    item.value().requires_grad_(is_among(item.key(), trained));
  }
  return net;
}

template <class Body>
void on_partly_trained(int ranks, const Body& body,
                       const std::vector<std::string>& trained = kTrained) {
  run_ranks(ranks, [&](World world) {
    auto model = fully_shard(make_frozen_net(trained), Mesh::shard(world),
                             {.precision = {.param_dtype = at::kBFloat16}});
    AdamW optimizer(model, {.lr = 1e-2});
    body(model, optimizer);
  });
}

}  // namespace sherd::test
