#include "llm/model/kv_cache.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/util/Exception.h>

#include "ops/attention.h"

namespace llm::model {

void KvCache::begin(const at::Tensor& attention_mask_BT) {
  const int64_t tokens = attention_mask_BT.size(1);
  TORCH_CHECK_VALUE(empty() || tokens == 1, "[KvCache::begin] got ", tokens,
                    " tokens a row for a cache that holds text already; expected 1");
  TORCH_CHECK_VALUE(longest_ + tokens <= capacity_, "[KvCache::begin] ", longest_, " tokens and ",
                    tokens, " more exceed the cache's capacity of ", capacity_);
  announced_B_ = attention_mask_BT.sum(1);
  if (empty()) {
    lengths_B_ = at::zeros_like(announced_B_);
  }
  positions_B_ = lengths_B_;
}

at::Tensor KvCache::attend(int64_t layer, const at::Tensor& query, const at::Tensor& key,
                           const at::Tensor& value, const std::optional<at::Tensor>& alibi_slopes) {
  if (empty()) {
    if (static_cast<int64_t>(layers_.size()) <= layer) {
      layers_.resize(static_cast<size_t>(layer) + 1);
    }
    const auto kept = [&](const at::Tensor& heads) {
      at::Tensor room =
          at::zeros({heads.size(0), heads.size(1), capacity_, heads.size(3)}, heads.options());
      room.narrow(2, 0, heads.size(2)).copy_(heads);
      return room;
    };
    layers_[static_cast<size_t>(layer)] = {kept(key), kept(value)};
    return sherd::ops::attention(query, key, value, alibi_slopes);
  }
  Layer& past = layers_.at(static_cast<size_t>(layer));
  const at::Tensor place = positions_B_.view({-1, 1, 1, 1}).expand(key.sizes());
  past.keys_BKSH.scatter_(2, place, key);
  past.values_BKSH.scatter_(2, place, value);
  return sherd::ops::decode_attention(query, past.keys_BKSH.narrow(2, 0, longest_ + 1),
                                      past.values_BKSH.narrow(2, 0, longest_ + 1), positions_B_,
                                      alibi_slopes);
}

void KvCache::advance() {
  lengths_B_ = lengths_B_ + announced_B_;
  longest_ = lengths_B_.numel() == 0 ? 1 : lengths_B_.max().item<int64_t>();
}

}  // namespace llm::model
