#pragma once
// The gradient of an embedding: tokens are sorted by their ids, tokens of one id are summed in
// their order, and added at once.

#include "gpu/block.cuh"
#include "ops/cuda/kernels/arguments.h"

namespace sherd::ops::cuda {

using namespace gpu;  // NOLINT(google-build-using-namespace)

/// How many of the 32 ids of a warp's tile `is_below(id, which)` holds for.
template <class IsBelow>
GPU_FUNCTION std::int32_t count_below(const Words* tile, const IsBelow& is_below) {
  std::int32_t count = 0;
  for (int i = 0; i < gpu::kWarp; i += Words::kCount) {
    const Words four = tile[i / Words::kCount];
    for (int j = 0; j < Words::kCount; ++j) {
      count += is_below(static_cast<std::int32_t>(four.values[j]), i + j) ? 1 : 0;
    }
  }
  return count;
}

/// Sorts ids stably: the place of an id is the number of ids that are smaller, or the same and
/// before it. The warps of a block count for the same 32 ids, each among a part of all ids, and the
/// counts are added. count² comparisons: 8192 ids take fewer instructions than a radix sort's
/// launches take time.
template <int kThreads>
GPU_KERNEL(kThreads)
sorted_ids(const std::int64_t* ids, std::int64_t count, std::int32_t* sorted, std::int64_t* order) {
  constexpr int kWarps = kThreads / gpu::kWarp;
  constexpr std::int32_t kNone = 0x7ffffffe;  // above every id; one more is a number, too
  GPU_SHARED(Words, tile, kThreads / Words::kCount);
  GPU_SHARED(std::int32_t, places, kThreads);
  const int lane = gpu::thread_index() % gpu::kWarp, warp = gpu::thread_index() / gpu::kWarp;
  const std::int64_t first = gpu::block_index() * gpu::kWarp;
  const auto id_at = [=](std::int64_t at) {
    return at < count ? static_cast<std::int32_t>(gpu::load_value(ids + at)) : kNone;
  };
  const std::int32_t id = id_at(first + lane);
  std::int32_t place = 0;
  for (std::int64_t begin = 0; begin < count; begin += kThreads) {
    gpu::sync_block();  // the tile before has been read
    const int at = gpu::thread_index();
    tile[at / Words::kCount].values[at % Words::kCount] =
        static_cast<std::uint32_t>(id_at(begin + at));
    gpu::sync_block();
    const std::int64_t others = begin + warp * gpu::kWarp;
    const Words* const of_warp = tile + warp * gpu::kWarp / Words::kCount;
    if (others == first) {
      place += count_below(of_warp, [=](std::int32_t other, int i) {
        return other < id || (other == id && i < lane);
      });
    } else {
      const std::int32_t limit = id + (others < first ? 1 : 0);  // those before: the same ones too
      place += count_below(of_warp, [=](std::int32_t other, int /*i*/) { return other < limit; });
    }
  }
  places[gpu::thread_index()] = place;
  gpu::sync_block();
  if (warp == 0 && first + lane < count) {
    for (int w = 1; w < kWarps; ++w) {
      place += places[w * gpu::kWarp + lane];
    }
    gpu::store_value(sorted + place, id);
    gpu::store_value(order + place, first + lane);
  }
}

/// Tokens of one id that are added one after the other. Of an id that has more, each part of so
/// many is summed by itself, and the parts are added in their order.
inline constexpr int kEmbeddingPart = 64;

/// Columns of a row as registers hold them: packs of T, or a single value where rows are no whole
/// packs.
template <class T, int kCount>
struct Columns {
  static constexpr int kOfAPack = Pack<T>::kCount;
  Words packs[kCount / kOfAPack];
  GPU_FUNCTION void load(const T* from) {
    for (int pack = 0; pack < kCount / kOfAPack; ++pack) {
      packs[pack] = load_words(from + pack * kOfAPack);
    }
  }
  [[nodiscard]] GPU_FUNCTION float at(int i) const {
    return float_at<T>(packs[i / kOfAPack], i % kOfAPack);
  }
  static GPU_FUNCTION void store(T* to, const float (&values)[kCount]) {
    for (int pack = 0; pack < kCount / kOfAPack; ++pack) {
      Pack<T> rounded;
      for (int i = 0; i < kOfAPack; ++i) {
        rounded.values[i] = gpu::rounded<T>(values[pack * kOfAPack + i]);
      }
      store_pack(to + pack * kOfAPack, rounded);
    }
  }
};
template <class T>
struct Columns<T, 1> {
  T value;
  GPU_FUNCTION void load(const T* from) { value = gpu::load_value(from); }
  [[nodiscard]] GPU_FUNCTION float at(int /*i*/) const { return gpu::to_float(value); }
  static GPU_FUNCTION void store(T* to, const float (&values)[1]) {
    gpu::store_value(to, gpu::rounded<T>(values[0]));
  }
};

/// Adds tokens first, first + 1, … of one id to `sums`, no more than kEmbeddingPart: two rows are
/// under way at a time.
template <int kCount, class T, class Out>
GPU_FUNCTION void add_tokens(const EmbeddingRows<T, Out>& of, std::int64_t first, std::int32_t id,
                             std::int64_t column, float (&sums)[kCount]) {
  constexpr int kBatch = 2;
  for (std::int64_t begin = first; begin < first + kEmbeddingPart; begin += kBatch) {
    Columns<T, kCount> rows[kBatch];
    bool is_one[kBatch];
    for (int i = 0; i < kBatch; ++i) {
      is_one[i] = begin + i < of.count && gpu::load_for_warp(of.ids + begin + i) == id;
      const std::int64_t row = begin + i < of.count ? gpu::load_for_warp(of.order + begin + i) : 0;
      if (is_one[i] && column < of.width) {
        rows[i].load(of.gradient + row * of.width + column);
      }
    }
    for (int i = 0; i < kBatch; ++i) {
      for (int j = 0; j < kCount && is_one[i] && column < of.width; ++j) {
        sums[j] += rows[i].at(j);
      }
    }
    if (!is_one[kBatch - 1]) {
      return;
    }
  }
}

/// out[id] += the gradients of each id, summed in fp32 and rounded once. A block has kThreads ÷ 32
/// tokens in the order of their ids, and 32 × kCount columns. A warp has one token, and works if
/// the token is the first of its id; all warps of the block work on an id of more than
/// kEmbeddingPart tokens. Bytes: read n × width × sizeof(T); read and write width × sizeof(Out) for
/// each id that occurs; read ids and order.
template <class T, class Out, int kCount, int kThreads>
GPU_KERNEL(kThreads, 4)
add_embedding_rows(EmbeddingRows<T, Out> of) {
  constexpr int kWarps = kThreads / gpu::kWarp;
  constexpr int kTileColumns = gpu::kWarp * kCount;
  GPU_SHARED(float, of_parts, kWarps* kTileColumns);
  GPU_SHARED(int, has_parts, kWarps);
  const int lane = gpu::thread_index() % gpu::kWarp, warp = gpu::thread_index() / gpu::kWarp;
  const std::int64_t tiles = (of.width + kTileColumns - 1) / kTileColumns;
  const std::int64_t first = gpu::block_index() / tiles * kWarps, token = first + warp;
  const std::int64_t column = gpu::block_index() % tiles * kTileColumns + lane * kCount;
  const auto id_at = [&](std::int64_t at) { return gpu::load_for_warp(of.ids + at); };
  const auto goes_on = [&](std::int64_t at, std::int32_t id) {
    return at < of.count && id_at(at) == id;
  };
  const std::int32_t id = token < of.count ? id_at(token) : 0;
  const bool goes_on_from_before = token > 0 && goes_on(token - 1, id);
  const bool is_longer = goes_on(token + kEmbeddingPart, id);
  const bool is_first = token < of.count && !goes_on_from_before, is_long = is_first && is_longer;
  if (is_first && !is_long && column < of.width) {
    Columns<Out, kCount> before;
    before.load(of.out + id * of.width + column);
    float sums[kCount] = {};
    add_tokens(of, token, id, column, sums);
    for (int i = 0; i < kCount; ++i) {
      sums[i] += before.at(i);
    }
    before.store(of.out + id * of.width + column, sums);
  }
  has_parts[warp] = is_long ? 1 : 0;
  gpu::sync_block();
  for (int w = 0; w < kWarps; ++w) {
    if (has_parts[w] == 0) {
      continue;
    }
    const std::int32_t shared_id = id_at(first + w);
    float total[kCount] = {};
    std::int64_t begin = first + w;
    do {
      float sums[kCount] = {};
      add_tokens(of, begin + warp * kEmbeddingPart, shared_id, column, sums);
      for (int i = 0; i < kCount; ++i) {
        of_parts[warp * kTileColumns + lane * kCount + i] = sums[i];
      }
      gpu::sync_block();
      for (int part = 0; part < kWarps; ++part) {
        for (int i = 0; i < kCount; ++i) {
          total[i] += of_parts[part * kTileColumns + lane * kCount + i];
        }
      }
      gpu::sync_block();  // before the next parts are written
      begin += kWarps * kEmbeddingPart;
    } while (goes_on(begin, shared_id));
    if (warp == 0 && column < of.width) {
      Columns<Out, kCount> before;
      before.load(of.out + shared_id * of.width + column);
      for (int i = 0; i < kCount; ++i) {
        total[i] += before.at(i);
      }
      before.store(of.out + shared_id * of.width + column, total);
    }
  }
}

}  // namespace sherd::ops::cuda
