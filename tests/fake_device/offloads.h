#pragma once
// All that can rest elsewhere but activations.

#include <string>

#include "sherd/options.h"

namespace sherd::fake {

inline Offload all_on_host() {
  return {.optimizer_on_host = true, .parameters_on_host = true, .gradients_on_host = true};
}

inline Offload all_on_disk(const std::string& folder) {
  return {.optimizer_folder = folder, .gradient_folder = folder, .parameter_folder = folder};
}

}  // namespace sherd::fake
