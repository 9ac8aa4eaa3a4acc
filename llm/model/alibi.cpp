#include "llm/model/alibi.h"

#include <bit>
#include <cmath>

#include <ATen/ops/empty.h>

namespace llm::model {
namespace {

// 2^(−8 ÷ heads), in fp32 as transformers keeps it.
float base_of(int64_t heads) {
  return static_cast<float>(std::exp2(-8.0 / static_cast<double>(heads)));
}

}  // namespace

at::Tensor alibi_slopes(int64_t heads) {
  const auto whole = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(heads)));
  const float base = base_of(whole), finer_base = base_of(2 * whole);
  at::Tensor slopes = at::empty({heads}, at::device(at::kCPU).dtype(at::kFloat));
  auto values = slopes.accessor<float, 1>();
  for (int64_t i = 0; i < heads; ++i) {
    values[i] = i < whole ? std::pow(base, static_cast<float>(i + 1))
                          : std::pow(finer_base, static_cast<float>(2 * (i - whole) + 1));
  }
  return slopes;
}

}  // namespace llm::model
