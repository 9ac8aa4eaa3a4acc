#include "llm/train/deterministic.h"

#include <cstdlib>
#include <string>

#include <ATen/Context.h>

#include "sherd/error.h"

namespace llm::train {

namespace {

constexpr const char* kWorkspace = "CUBLAS_WORKSPACE_CONFIG";
constexpr const char* kRepeats = ":4096:8";
constexpr const char* kRepeatsToo = ":16:8";  // less memory, slower

}  // namespace

void prepare_deterministic(bool wanted, c10::DeviceType device) {
  if (!wanted || device != c10::DeviceType::CUDA) {
    return;
  }
  ::setenv(kWorkspace, kRepeats, /*overwrite=*/0);
  const std::string value = std::getenv(kWorkspace);
  if (value != kRepeats && value != kRepeatsToo) {
    throw sherd::Error(sherd::ExitCode::Usage,
                       std::string("train.deterministic is true, and ") + kWorkspace + " is \"" +
                           value +
                           "\", which lets results of cuBLAS differ between runs: set it to \"" +
                           kRepeats + "\" or \"" + kRepeatsToo + "\", or unset it.");
  }
}

DeterministicAlgorithms::DeterministicAlgorithms(bool wanted, c10::Device device)
    : are_set_(wanted && device.is_cuda()) {
  if (are_set_) {
    at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
    at::globalContext().setDeterministicFillUninitializedMemory(false);
  }
}

DeterministicAlgorithms::~DeterministicAlgorithms() {
  if (are_set_) {
    at::globalContext().setDeterministicAlgorithms(false, /*warn_only=*/false);
    at::globalContext().setDeterministicFillUninitializedMemory(true);
  }
}

}  // namespace llm::train
