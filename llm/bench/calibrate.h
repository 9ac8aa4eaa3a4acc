#pragma once
// How fast this machine's ranks compute, for plans: `sherd bench --calibrate`.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "llm/plan/rates.h"
#include "sherd/world.h"

namespace llm::bench {

/// A small model that is trained on samples of one length.
struct Reference {
  std::string family;  ///< as config.json has it: `model_type`
  std::int64_t hidden = 0;
  std::int64_t layers = 0;
  std::int64_t vocabulary = 0;
  std::int64_t samples = 0;
  std::int64_t sample_tokens = 0;
};
/// Between them the amounts of what few cores train: about a minute.
[[nodiscard]] const std::vector<Reference>& references();

/// Trains each of `models` in float32 and bfloat16 for some steps and times every operator on
/// rank 0. All ranks are of this host. Collective. `say` is called with what is measured next.
[[nodiscard]] plan::Rates calibrate(sherd::World world, const std::vector<Reference>& models,
                                    const std::function<void(const std::string&)>& say);

}  // namespace llm::bench
