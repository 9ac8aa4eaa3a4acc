#pragma once
// Training in many ways, whose numbers may not depend on what overlaps.

#include <string>
#include <vector>

#include "sherd/options.h"
#include "sherd/world.h"

namespace sherd::fake {

struct Scenario {
  std::string name;
  int ranks = 2;
  ShardOptions options = {};
  int micro_batches = 1;  ///< a rank and step
  bool sync_each = true;  ///< else gradients are reduced after the last micro-batch
  bool all_reduce_each = true;
  bool reshard_after_backward = true;
  bool evaluates = false;         ///< a forward without gradients after each step
  bool fails_in_forward = false;  ///< an exception in the second step, which is begun again
  bool fails_in_backward = false;
  bool ends_failing = false;  ///< that exception is the end of the model
  int64_t repeats = 1;        ///< of each example's rows
};

/// Such that a block's input takes a megabyte.
inline constexpr int64_t kLargeRepeats = 7000;

/// Forty.
[[nodiscard]] const std::vector<Scenario>& scenarios();

/// What a rank has after three steps: losses, and parameters as they lie on it, on the host.
[[nodiscard]] std::vector<at::Tensor> train(const World& world, const Scenario& scenario);

}  // namespace sherd::fake
