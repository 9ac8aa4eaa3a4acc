// World::fake(): one rank on the meta device, which plans as one of many.

#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#pragma push_macro("SHERD_NARROW_TORCH")  // include/sherd/narrow/README.md
#undef SHERD_NARROW_TORCH
#include <torch/library.h>
#pragma pop_macro("SHERD_NARROW_TORCH")

#include "comm/local.h"
#include "rendezvous/backends.h"
#include "sherd/error.h"

namespace sherd::detail {

namespace {

using Like = FakeCommunicator::Like;

class FakeWorld final : public Backend {
 public:
  explicit FakeWorld(const FakeRanks& ranks)
      : ranks_(ranks), control_({0, 1, ranks.size}, /*rank=*/0, Like::ProcessGroups) {}

  [[nodiscard]] int rank() const override { return 0; }
  [[nodiscard]] int size() const override { return ranks_.size; }
  [[nodiscard]] int local_size() const override { return ranks_.local_size; }
  [[nodiscard]] c10::Device device() const override { return c10::Device(c10::kMeta); }
  [[nodiscard]] c10::DeviceType device_type() const override { return ranks_.device; }
  [[nodiscard]] std::unique_ptr<Communicator> make_communicator(const RankGroup& group) override {
    return std::make_unique<FakeCommunicator>(group, rank(), like(group),
                                              group.size / group.ranks_of_a_host(ranks_.local_size),
                                              ranks_.reduce_scatter);
  }
  [[nodiscard]] Communicator& control() override { return control_; }
  [[nodiscard]] std::vector<std::string> all_gather(const std::string& text) override {
    return std::vector<std::string>(static_cast<size_t>(size()), text);
  }
  void broadcast(void* /*data*/, int64_t /*bytes*/, int /*root*/) override {}
  void send(void* /*data*/, int64_t /*bytes*/, int /*from*/, int /*to*/) override {}

 private:
  // What World::from_environment() would choose.
  [[nodiscard]] Like like(const RankGroup& group) const {
    if (group.size == 1) {
      return Like::Alone;
    }
    if (ranks_.device == c10::DeviceType::CUDA) {
      return Like::Nccl;
    }
    if (ranks_.transport == Transport::ProcessGroups) {
      return Like::ProcessGroups;
    }
    const int of_a_host = group.ranks_of_a_host(ranks_.local_size);
    return of_a_host == group.size ? Like::SharedMemory
           : of_a_host > 1         ? Like::Hosts
                                   : Like::ProcessGroups;
  }

  FakeRanks ranks_;
  FakeCommunicator control_;
};

at::Tensor index_select(const at::Tensor& self, int64_t dim, const at::Tensor& index) {
  std::vector<int64_t> sizes = self.sizes().vec();
  sizes[static_cast<size_t>(dim < 0 ? dim + self.dim() : dim)] = index.numel();
  return at::empty(sizes, self.options());
}

// LibTorch has no kernel for these operators on the meta device. Once per process.
void register_meta_kernels() {
  static const auto registered = [] {
    torch::Library library(torch::Library::IMPL, "aten", c10::DispatchKey::Meta, __FILE__,
                           __LINE__);
    library.impl("index_select", &index_select);
    return library;
  }();
}

}  // namespace

std::shared_ptr<Backend> make_fake_world(const FakeRanks& ranks) {
  if (ranks.size < 1 || ranks.local_size < 1 || ranks.size % ranks.local_size != 0) {
    throw Error(ExitCode::Usage, "[World::fake] " + std::to_string(ranks.size) + " ranks, " +
                                     std::to_string(ranks.local_size) +
                                     " on each host: the first is a multiple of the second, and "
                                     "both are at least 1.");
  }
  register_meta_kernels();
  return std::make_shared<FakeWorld>(ranks);
}

}  // namespace sherd::detail
