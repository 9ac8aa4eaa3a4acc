#include "rendezvous/meta_kernels.h"

#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

namespace sherd::detail {

namespace {

at::Tensor index_select(const at::Tensor& self, int64_t dim, const at::Tensor& index) {
  std::vector<int64_t> sizes = self.sizes().vec();
  sizes[static_cast<size_t>(dim < 0 ? dim + self.dim() : dim)] = index.numel();
  return at::empty(sizes, self.options());
}

}  // namespace

void register_meta_kernels() {
  static const auto registered = [] {
    torch::Library library(torch::Library::IMPL, "aten", c10::DispatchKey::Meta, __FILE__,
                           __LINE__);
    library.impl("index_select", &index_select);
    return library;
  }();
}

}  // namespace sherd::detail
