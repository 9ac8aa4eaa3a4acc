#include "rendezvous/gpu_sharing.h"

#include <map>

namespace sherd::detail {

std::optional<SharedGpu> shared_gpu(const std::vector<std::string>& gpus, const RankGroup& group) {
  std::map<std::string, int> owners;
  for (int member = 0; member < group.size; ++member) {
    const int rank = group.rank_at(member);
    const std::string& gpu = gpus[static_cast<size_t>(rank)];
    const auto [owner, is_new] = owners.emplace(gpu, rank);
    if (!is_new) {
      return SharedGpu{owner->second, rank, gpu};
    }
  }
  return std::nullopt;
}

}  // namespace sherd::detail
