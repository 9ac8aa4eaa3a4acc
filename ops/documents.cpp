#include "ops/documents.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/tensor.h>
#include <c10/util/Exception.h>

#include "sherd/memory.h"

namespace sherd::ops {

// Bounds and positions where they were asked for last.
class Documents::OnDevice {
 public:
  at::Tensor bounds(const Documents& of, at::Device device) {
    return kept(bounds_, device, [&] { return at::tensor(of.bounds(), at::kInt); });
  }
  at::Tensor positions(const Documents& of, at::Device device) {
    return kept(positions_, device, [&] { return of.positions(); });
  }

 private:
  template <class Make>
  at::Tensor kept(at::Tensor& tensor, at::Device device, const Make& make) {
    const std::lock_guard lock(guard_);
    if (!tensor.defined() || tensor.device() != device) {
      tensor = to_device(make(), device);
    }
    return tensor;
  }

  std::mutex guard_;
  at::Tensor bounds_;
  at::Tensor positions_;
};

Documents::Documents(std::vector<int64_t> bounds) {
  TORCH_CHECK_VALUE(!bounds.empty() && bounds.front() == 0,
                    "[Documents] expected bounds that begin with 0");
  for (size_t i = 1; i < bounds.size(); ++i) {
    TORCH_CHECK_VALUE(bounds[i - 1] < bounds[i], "[Documents] document ", i - 1, " ends at token ",
                      bounds[i], ", where it begins or before (", bounds[i - 1],
                      "); expected at least one token in each");
  }
  bounds_ = std::make_shared<const std::vector<int64_t>>(std::move(bounds));
  on_device_ = std::make_shared<OnDevice>();
}

Documents Documents::of_lengths(std::span<const int64_t> lengths) {
  std::vector<int64_t> bounds = {0};
  for (const int64_t length : lengths) {
    bounds.push_back(bounds.back() + length);
  }
  return Documents(std::move(bounds));
}

Documents Documents::of_equal_length(int64_t count, int64_t length) {
  return of_lengths(std::vector<int64_t>(index(count), length));
}

int64_t Documents::longest() const {
  int64_t most = 0;
  for (int64_t d = 0; d < count(); ++d) {
    most = std::max(most, length(d));
  }
  return most;
}

at::Tensor Documents::bounds_on(at::Device device) const {
  return on_device_->bounds(*this, device);
}

at::Tensor Documents::positions_on(at::Device device) const {
  return on_device_->positions(*this, device);
}

at::Tensor Documents::positions() const {
  at::Tensor positions = at::arange(tokens(), at::kLong);
  for (int64_t d = 0; d < count(); ++d) {
    positions.slice(0, begin(d), end(d)).sub_(begin(d));
  }
  return positions;
}

at::Tensor Documents::first_tokens() const {
  return at::tensor(*bounds_, at::kLong).narrow(0, 0, count());
}

at::Tensor Documents::last_tokens() const {
  return at::tensor(*bounds_, at::kLong).narrow(0, 1, count()) - 1;
}

}  // namespace sherd::ops
