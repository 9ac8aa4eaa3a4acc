#include <string>

#include "sherd/error.h"
#include "sherd/memory.h"
#include "storage/device_graph.h"

namespace sherd {

at::Tensor to_device(const at::Tensor& tensor, c10::Device device) {
  const bool crosses = tensor.is_cpu() && !device.is_cpu() && !device.is_meta();
  if (!crosses || tensor.requires_grad() || tensor.numel() == 0) {
    return tensor.to(device);
  }
  if (detail::capture_of(device) != 0) {
    throw Error(ExitCode::Usage,
                "[to_device] a tensor of the host, of " + std::to_string(tensor.numel()) +
                    " elements, is moved to " + device.str() +
                    " in a micro-batch that is captured as a graph, which would read the host's "
                    "memory again each time: pass it as an input.");
  }
  return tensor.pin_memory().to(device, /*non_blocking=*/true);
}

}  // namespace sherd
