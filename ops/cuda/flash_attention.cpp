#include "ops/cuda/flash_attention.h"

#include <algorithm>
#include <limits>
#include <vector>

#include <ATen/ops/_flash_attention_backward.h>
#include <ATen/ops/_flash_attention_forward.h>
#include <ATen/ops/empty.h>

#include "ops/cuda/dispatch.h"
#include "ops/shared/blockwise_attention.h"

namespace sherd::ops::cuda {
namespace {

constexpr int64_t kWidestHead = 256;
constexpr bool kIsCausal = true;
constexpr double kDropout = 0;

// Each head begins with a pack.
bool has_packed_heads(const at::Tensor& heads) {
  const int64_t count = pack_count(dtype_of(heads));
  return is_aligned(heads) && heads.stride(2) == 1 && heads.stride(1) % count == 0 &&
         heads.stride(0) % count == 0;
}

}  // namespace

bool serves_flash_attention(const AttentionInputs& inputs) {
  const at::Tensor& query = inputs.query;
  const bool is_16_bits = query.scalar_type() == at::kBFloat16 || query.scalar_type() == at::kHalf;
  return is_16_bits && !inputs.slopes.defined() && inputs.documents.longest() > 1 &&
         query.size(0) < std::numeric_limits<int32_t>::max() && query.size(2) <= kWidestHead &&
         fits_packs(query, query.size(2)) && has_packed_heads(query) &&
         has_packed_heads(inputs.key) && has_packed_heads(inputs.value) &&
         has_flash_attention(query.device());
}

// From pinned memory, which the copy reads while the host goes on.
at::Tensor document_offsets(const Documents& documents, c10::Device device) {
  const std::vector<int64_t>& bounds = documents.bounds();
  const auto options = at::TensorOptions(at::kInt).pinned_memory(device.is_cuda());
  const at::Tensor offsets = at::empty({static_cast<int64_t>(bounds.size())}, options);
  std::transform(bounds.begin(), bounds.end(), offsets.mutable_data_ptr<int32_t>(),
                 [](int64_t bound) { return static_cast<int32_t>(bound); });
  return offsets.to(device, at::kInt, /*non_blocking=*/true);
}

AttentionOutput flash_attention(const AttentionInputs& inputs) {
  const at::Tensor offsets = document_offsets(inputs.documents, inputs.query.device());
  const int64_t longest = inputs.documents.longest();
  const auto result = at::_flash_attention_forward(
      inputs.query, inputs.key, inputs.value, offsets, offsets, longest, longest, kDropout,
      kIsCausal, /*return_debug_mask=*/false, scale_of(inputs.query));
  const at::Tensor& mixed = std::get<0>(result);
  return {mixed.reshape({mixed.size(0), -1}), /*log_sums=*/std::get<1>(result),
          /*keeps_mixed=*/true};
}

AttentionGradients flash_attention_backward(const AttentionInputs& inputs,
                                            const AttentionOutput& output,
                                            const at::Tensor& grad_mixed_TD) {
  const at::Tensor& query = inputs.query;
  const at::Tensor offsets = document_offsets(inputs.documents, query.device());
  const int64_t longest = inputs.documents.longest();
  // Without dropout nobody reads the state of random numbers.
  const at::Tensor unread = at::empty({2}, query.options().dtype(at::kUInt64));
  const auto result = at::_flash_attention_backward(
      grad_mixed_TD.reshape(query.sizes()), query, inputs.key, inputs.value,
      output.mixed_TD.view(query.sizes()), output.log_sums, offsets, offsets, longest, longest,
      kDropout, kIsCausal, unread, unread, scale_of(query));
  return {std::get<0>(result), std::get<1>(result), std::get<2>(result)};
}

}  // namespace sherd::ops::cuda
