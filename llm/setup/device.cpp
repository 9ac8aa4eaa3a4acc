#include "llm/setup/device.h"

#include <fmt/core.h>

#include "llm/config/words.h"
#include "llm/setup/options_of_config.h"
#include "llm/text/printable.h"
#include "ops/cpu/isa.h"
#include "sherd/error.h"

namespace llm::setup {

c10::DeviceType chosen_device(config::DeviceKind kind, const sherd::Gpus& gpus, int local_ranks,
                              const track::Say& say) {
  if (kind == config::DeviceKind::Cpu) {
    return c10::DeviceType::CPU;
  }
  if (!gpus.problem.empty()) {
    if (kind == config::DeviceKind::Cuda) {
      throw sherd::Error(sherd::ExitCode::Unavailable,
                         "device.kind is \"cuda\", and no GPU can be used: " + gpus.problem);
    }
    if (!gpus.all.empty()) {
      say("computing on the CPU: " + gpus.problem);
    }
    return c10::DeviceType::CPU;
  }
  const auto count = static_cast<int>(gpus.all.size());
  if (local_ranks > count) {
    throw sherd::Error(
        sherd::ExitCode::Usage,
        fmt::format("{} on this host, and {}: each rank needs its own. "
                    "Start {} (-n {}), or compute on the CPU (--device.kind cpu).",
                    text::counted(local_ranks, "rank"), text::counted(count, "GPU"), count, count));
  }
  return c10::DeviceType::CUDA;
}

const sherd::Gpu* gpu_of(const sherd::World& world) {
  const c10::Device device = world.device();
  return device.is_cuda() ? &sherd::gpus().all.at(static_cast<std::size_t>(device.index()))
                          : nullptr;
}

std::string gpus_line(int ranks, int ranks_of_a_host, const config::ParallelSection& parallel) {
  const sherd::Placements placements = sherd::placements_of(strategy_of(parallel.strategy));
  const bool is_hybrid = placements.mesh_dimensions == 2;
  const int shards = is_hybrid ? parallel.shard_size.value_or(ranks_of_a_host) : ranks;
  const int hosts = ranks / ranks_of_a_host;
  std::string text = fmt::format("{} x {}; {}: ", text::counted(hosts, "host"),
                                 text::counted(ranks_of_a_host, "GPU"),
                                 config::word_of(parallel.strategy, config::strategy_words()));
  if (placements.optimizer == sherd::Placement::Replicate) {
    return text + fmt::format("replicas on {}", text::counted(ranks, "rank"));
  }
  text += fmt::format("shards within {}{}", text::counted(shards, "rank"),
                      ranks_of_a_host % shards == 0 ? " of a host" : "");
  return is_hybrid ? text + fmt::format(", replicas across {}", ranks / shards) : text;
}

std::string path_of(const sherd::World& world) {
  const sherd::Gpu* const gpu = gpu_of(world);
  return gpu != nullptr ? gpu->name : sherd::ops::cpu::isa_name();
}

SyncWatch::SyncWatch(config::SyncDebug mode, c10::Device device)
    : watches_(device.is_cuda() && mode != config::SyncDebug::Default) {
  if (watches_) {
    sherd::set_sync_debug_mode(mode == config::SyncDebug::Error ? sherd::SyncDebugMode::Error
                                                                : sherd::SyncDebugMode::Warn);
  }
}

SyncWatch::~SyncWatch() {
  if (watches_) {
    sherd::set_sync_debug_mode(sherd::SyncDebugMode::Default);
  }
}

void require_dtype(config::ParamDtype dtype, const sherd::Gpu& gpu) {
  if (dtype == config::ParamDtype::BFloat16 && !gpu.has_bfloat16()) {
    throw sherd::Error(
        sherd::ExitCode::Usage,
        fmt::format("precision.param_dtype is \"bfloat16\", which {}, of compute capability {}.{}, "
                    "does not support: set it to \"float16\" or \"float32\".",
                    gpu.name, gpu.major, gpu.minor));
  }
}

}  // namespace llm::setup
