#pragma once
// `train.deterministic`: GPU kernels whose results repeat bit for bit, as far as LibTorch says.

#include <c10/core/Device.h>

namespace llm::train {

/// Sets CUBLAS_WORKSPACE_CONFIG to ":4096:8" where results are `wanted` to repeat on a GPU, unless
/// it is set: cuBLAS reads it when it is first used. Call it before the world is made, while no
/// other thread reads the environment. Throws sherd::Error(Usage) for a value under which cuBLAS
/// promises nothing.
void prepare_deterministic(bool wanted, c10::DeviceType device);

/// While one lives, LibTorch is told to use deterministic algorithms, where they are `wanted` and
/// `device` is a GPU. Process-wide. On CPUs it does nothing: runs repeat their bits anyway.
/// PyTorch: `torch.use_deterministic_algorithms(True)`, without filling empty tensors.
class DeterministicAlgorithms {
 public:
  DeterministicAlgorithms(bool wanted, c10::Device device);
  DeterministicAlgorithms(const DeterministicAlgorithms&) = delete;
  DeterministicAlgorithms& operator=(const DeterministicAlgorithms&) = delete;
  ~DeterministicAlgorithms();

 private:
  bool are_set_;
};

}  // namespace llm::train
