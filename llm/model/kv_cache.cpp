#include "llm/model/kv_cache.h"

#include <algorithm>

#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include "ops/attention.h"
#include "sherd/memory.h"

namespace llm::model {

void KvCache::begin(const sherd::ops::Documents& documents) {
  TORCH_CHECK_VALUE(
      reading_prompts_ || (documents.count() == rows() && documents.tokens() == rows()),
      "[KvCache::begin] got ", documents.tokens(), " tokens in ", documents.count(),
      " documents for a cache that holds ", rows(), " texts already; expected one token of each");
  const int64_t most = documents.longest();
  TORCH_CHECK_VALUE(longest_ + most <= capacity_, "[KvCache::begin] ", longest_, " tokens and ",
                    most, " more exceed the cache's capacity of ", capacity_);
  announced_ = documents;
  positions_B_ = at::tensor(lengths_, at::kLong);
}

void KvCache::store_prompts(int64_t layer, const at::Tensor& key, const at::Tensor& value) {
  layers_.resize(std::max(layers_.size(), static_cast<size_t>(layer) + 1));
  const auto kept = [&](const at::Tensor& heads_TKH) {
    const at::Tensor room = at::zeros(
        {announced_.count(), heads_TKH.size(1), capacity_, heads_TKH.size(2)}, heads_TKH.options());
    for (int64_t row = 0; row < announced_.count(); ++row) {
      room[row]
          .narrow(1, 0, announced_.length(row))
          .copy_(heads_TKH.slice(0, announced_.begin(row), announced_.end(row)).transpose(0, 1));
    }
    return room;
  };
  layers_[static_cast<size_t>(layer)] = {kept(key), kept(value)};
}

at::Tensor KvCache::attend(int64_t layer, const at::Tensor& query, const at::Tensor& key,
                           const at::Tensor& value, const std::optional<at::Tensor>& alibi_slopes,
                           sherd::ops::AttentionKernel kernel,
                           const sherd::ops::AttentionScores& scores) {
  if (reading_prompts_) {
    store_prompts(layer, key, value);
    return sherd::ops::attention(query, key, value, announced_, alibi_slopes, kernel, scores);
  }
  const int64_t first = scores.first_seen(shortest_);
  const Layer& past = layers_.at(static_cast<size_t>(layer));
  const at::Tensor place = sherd::to_device(positions_B_, key.device())
                               .view({-1, 1, 1, 1})
                               .expand({rows(), key.size(1), 1, key.size(2)});
  const auto with_new = [&](const at::Tensor& room, const at::Tensor& heads) {
    const at::Tensor used = room.narrow(0, 0, rows());
    used.scatter_(2, place, heads.unsqueeze(2));
    return used.narrow(2, first, longest_ + 1 - first);
  };
  return sherd::ops::decode_attention(
      query, with_new(past.keys_BKSH, key), with_new(past.values_BKSH, value),
      sherd::to_device(first == 0 ? positions_B_ : positions_B_ - first, key.device()),
      alibi_slopes, scores);
}

void KvCache::advance() {
  lengths_.resize(static_cast<size_t>(announced_.count()), 0);
  for (int64_t row = 0; row < rows(); ++row) {
    lengths_[static_cast<size_t>(row)] += announced_.length(row);
  }
  reading_prompts_ = false;
  find_lengths();
}

void KvCache::find_lengths() {
  const auto [least, most] = std::minmax_element(lengths_.begin(), lengths_.end());
  shortest_ = lengths_.empty() ? 0 : *least;
  longest_ = lengths_.empty() ? 0 : *most;
}

void KvCache::keep(std::span<const int64_t> kept) {
  for (size_t row = 0; row < kept.size(); ++row) {
    const int64_t from = kept[row];
    const auto to = static_cast<int64_t>(row);
    TORCH_CHECK_VALUE(from >= to && from < rows(), "[KvCache::keep] row ", to,
                      " cannot become row ", from, " of ", rows());
    if (from == to) {
      continue;
    }
    const int64_t length = lengths_[static_cast<size_t>(from)];
    for (const Layer& layer : layers_) {
      for (const at::Tensor& room : {layer.keys_BKSH, layer.values_BKSH}) {
        room[to].narrow(1, 0, length).copy_(room[from].narrow(1, 0, length));
      }
    }
    lengths_[row] = length;
  }
  lengths_.resize(kept.size());
  find_lengths();
}

}  // namespace llm::model
