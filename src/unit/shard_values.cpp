#include "unit/shard_values.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>

#include "kernels/shard_math.h"

namespace sherd::detail {

ShardValues ShardValues::narrow(int64_t start, int64_t numel) const {
  ShardValues part(values_.narrow(0, start, numel));
  part.low_ = is_split() ? low_.narrow(0, start, numel) : low_;
  part.use_ = use_;
  part.use_low_ = use_low_;
  return part;
}

at::Tensor ShardValues::read() const {
  if (!rests()) {
    return is_split() ? shard_math::join(values_, low_.to(values_.device())) : values_;
  }
  const at::Tensor all = at::empty({numel()}, values_.options().dtype(dtype()));
  for_each_stretch(/*writes=*/false, [&](int64_t first, const ShardValues& part) {
    all.narrow(0, first, part.numel()).copy_(part.read());
  });
  return all;
}

void ShardValues::write(const at::Tensor& values) const {
  const at::NoGradGuard no_grad;
  for_each_stretch(/*writes=*/true, [&](int64_t first, const ShardValues& part) {
    const at::Tensor source = values.narrow(0, first, part.numel());
    if (is_split()) {
      at::Tensor low = part.low_.device() == values_.device()
                           ? part.low_
                           : at::empty_like(part.low_, values_.device());
      shard_math::split(source.to(values_.device(), c10::kFloat).contiguous(), part.values_, low);
      if (!low.is_same(part.low_)) {
        part.low_.copy_(low);
      }
    } else {
      part.values_.copy_(source);
    }
  });
}

void ShardValues::fill(double value) const {
  const at::NoGradGuard no_grad;
  for_each_stretch(/*writes=*/true, [&](int64_t, const ShardValues& part) {
    if (is_split()) {
      part.write(at::full({part.numel()}, value, values_.options().dtype(c10::kFloat)));
    } else {
      part.values_.fill_(value);
    }
  });
}

}  // namespace sherd::detail
