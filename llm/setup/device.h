#pragma once
// Where a run is computed.

#include "llm/config/run_config.h"
#include "llm/track/progress.h"
#include "sherd/backend.h"
#include "sherd/world.h"

namespace llm::setup {

/// What `device.kind` means for a rank of a host with these GPUs and `local_ranks` ranks, one GPU
/// each. `auto`: on GPUs where there are any that can be used; where the driver shows some that
/// cannot be, on the CPU, and `say` is told why. Throws sherd::Error: Unavailable where `cuda`
/// cannot be, Usage for more ranks than GPUs.
[[nodiscard]] c10::DeviceType chosen_device(config::DeviceKind kind, const sherd::Gpus& gpus,
                                            int local_ranks, const track::Say& say);

/// The rank's GPU; null on the CPU.
[[nodiscard]] const sherd::Gpu* gpu_of(const sherd::World& world);

/// The GPUs of a run and what the strategy makes of them, for people: "2 hosts x 8 GPUs;
/// hybrid_shard: shards within 8 ranks of a host, replicas across 2".
[[nodiscard]] std::string gpus_line(int ranks, int ranks_of_a_host,
                                    const config::ParallelSection& parallel);

/// What a rank's numbers depend on beside its settings: the name of its GPU, or the path of the
/// processor (ops/cpu/isa.h).
[[nodiscard]] std::string path_of(const sherd::World& world);

/// As long as it lives, steps on a GPU are watched as `device.sync_debug_mode` says; on other
/// devices nothing is.
class SyncWatch {
 public:
  SyncWatch(config::SyncDebug mode, c10::Device device);
  SyncWatch(const SyncWatch&) = delete;
  SyncWatch& operator=(const SyncWatch&) = delete;
  ~SyncWatch();

 private:
  bool watches_;
};

/// Throws sherd::Error(Usage) where a GPU has no products in `dtype`.
void require_dtype(config::ParamDtype dtype, const sherd::Gpu& gpu);

}  // namespace llm::setup
