#pragma once
// The back ends that come with the library: one for each way ranks reach each other.

#include <memory>
#include <vector>

#include "sherd/world.h"

namespace sherd::detail {

[[nodiscard]] std::shared_ptr<Backend> make_local_world(c10::Device device);
[[nodiscard]] std::shared_ptr<Backend> make_world_from_environment(const WorldOptions& options);
/// Collective over `whole`. Throws Error(Usage) for a group that its rank is not in.
[[nodiscard]] std::shared_ptr<Backend> make_subset_world(std::shared_ptr<Backend> whole,
                                                         const RankGroup& ranks);
/// Throws Error(Usage) for impossible numbers of ranks.
[[nodiscard]] std::shared_ptr<Backend> make_fake_world(const FakeRanks& ranks);
[[nodiscard]] std::vector<std::shared_ptr<Backend>> make_in_process_worlds(
    int size, std::chrono::milliseconds timeout);

}  // namespace sherd::detail
