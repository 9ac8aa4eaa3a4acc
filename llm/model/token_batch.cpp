#include "llm/model/token_batch.h"

#include <ATen/TensorOperators.h>
#include <c10/util/Exception.h>

namespace llm::model {

TokenBatch without_padding(const at::Tensor& ids_BT, const at::Tensor& labels_BT,
                           const at::Tensor& attention_mask_BT) {
  const at::Tensor real = attention_mask_BT.ne(0);
  const bool grows =
      real.slice(1, 0, -1).logical_not().logical_and(real.slice(1, 1)).any().item<bool>();
  TORCH_CHECK_VALUE(!grows,
                    "[without_padding] attention_mask has a token after padding; expected padding "
                    "on the right of each row only");
  const at::Tensor lengths = real.sum(1).contiguous();
  return {ids_BT.masked_select(real), labels_BT.masked_select(real),
          sherd::ops::Documents::of_lengths(
              {lengths.const_data_ptr<int64_t>(), static_cast<size_t>(lengths.numel())})};
}

}  // namespace llm::model
