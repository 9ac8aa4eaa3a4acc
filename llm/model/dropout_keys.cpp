#include "llm/model/dropout_keys.h"

#include <algorithm>

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include "ops/dropout_mask.h"
#include "sherd/lora.h"

namespace llm::model {
namespace {

// Of a counter in a stream.
std::uint64_t with_counter(std::uint64_t stream, std::int64_t counter) {
  return sherd::ops::mixed(stream + static_cast<std::uint64_t>(counter));
}

}  // namespace

at::Tensor dropout_keys(std::uint64_t seed, std::int64_t step,
                        std::span<const std::int64_t> samples,
                        std::span<const std::int64_t> bounds) {
  TORCH_CHECK_VALUE(samples.size() + 1 == bounds.size(), "[dropout_keys] got ", samples.size(),
                    " samples for ", bounds.size() - 1, " documents");
  at::Tensor keys = at::empty({bounds.back()}, at::kLong);
  auto* next = keys.mutable_data_ptr<std::int64_t>();
  const std::uint64_t of_step = with_counter(sherd::ops::mixed(seed), step);
  for (std::size_t document = 0; document < samples.size(); ++document) {
    const std::uint64_t of_sample = with_counter(of_step, samples[document]);
    const std::int64_t length = bounds[document + 1] - bounds[document];
    for (std::int64_t position = 0; position < length; ++position) {
      *next++ = static_cast<std::int64_t>(with_counter(of_sample, position));
    }
  }
  return keys;
}

bool has_dropout(const CausalLmImpl& model) {
  const auto modules = model.modules(/*include_self=*/false);
  return std::any_of(modules.begin(), modules.end(), [](const auto& module) {
    const auto* const linear = dynamic_cast<const sherd::LoraModule*>(module.get());
    return linear != nullptr && linear->lora() != nullptr && linear->lora()->dropout > 0;
  });
}

}  // namespace llm::model
