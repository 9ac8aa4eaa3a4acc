#pragma once
// Whether ranks compute on one GPU: NCCL refuses them.

#include <optional>
#include <string>
#include <vector>

#include "sherd/backend.h"

namespace sherd::detail {

struct SharedGpu {
  int rank = 0;   ///< of the world
  int other = 0;  ///< likewise
  std::string gpu;
};

/// The first two ranks of a group that compute on the same GPU. `gpus`: which GPU each rank of the
/// world has, as a text that no other GPU has: numbers of devices say nothing, since a launcher may
/// show each rank its own GPU as the first.
[[nodiscard]] std::optional<SharedGpu> shared_gpu(const std::vector<std::string>& gpus,
                                                  const RankGroup& group);

}  // namespace sherd::detail
