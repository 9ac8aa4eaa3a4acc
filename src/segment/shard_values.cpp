#include "segment/shard_values.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>

#include "kernels/shard_math.h"

namespace sherd::detail {

ShardValues ShardValues::narrow(int64_t start, int64_t numel) const {
  return is_split() ? ShardValues(values_.narrow(0, start, numel), low_.narrow(0, start, numel))
                    : ShardValues(values_.narrow(0, start, numel));
}

at::Tensor ShardValues::read() const {
  return is_split() ? shard_math::join(values_, low_) : values_;
}

void ShardValues::write(const at::Tensor& values) const {
  const at::NoGradGuard no_grad;
  if (is_split()) {
    shard_math::split(values.to(values_.device(), c10::kFloat).contiguous(), values_, low_);
  } else {
    values_.copy_(values);
  }
}

void ShardValues::fill(double value) const {
  const at::NoGradGuard no_grad;
  if (is_split()) {
    write(at::full({numel()}, value, values_.options().dtype(c10::kFloat)));
  } else {
    values_.fill_(value);
  }
}

}  // namespace sherd::detail
