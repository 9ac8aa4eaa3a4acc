#include "ops/cuda/plain_uses.h"

#include <algorithm>
#include <mutex>

#include "ops/cuda/dispatch.h"

namespace sherd::ops::cuda {
namespace {

struct Noted {
  std::mutex mutex;
  std::vector<PlainUse> uses;
};
Noted& noted() {
  static Noted all;
  return all;
}

}  // namespace

void note_plain_use(const char* function, const std::string& reason) {
  Noted& all = noted();
  const std::lock_guard lock(all.mutex);
  const auto is_it = [&](const PlainUse& use) { return use.function == function; };
  if (std::none_of(all.uses.begin(), all.uses.end(), is_it)) {
    all.uses.push_back({function, reason});
  }
}

std::string reason_of(const at::Tensor& tensor, int64_t width) {
  if (!has_kernels(tensor)) {
    return std::string("there are kernels for Float, BFloat16 and Half, not for ") +
           c10::toString(tensor.scalar_type());
  }
  if (!fits_packs(tensor, width)) {
    return "rows of " + std::to_string(width) + " values are not a multiple of " +
           std::to_string(pack_count(dtype_of(tensor)));
  }
  return "tensors are not all dense, of one dtype, and at multiples of 16 bytes";
}

std::vector<PlainUse> noted_plain_uses() {
  Noted& all = noted();
  const std::lock_guard lock(all.mutex);
  return all.uses;
}

}  // namespace sherd::ops::cuda
