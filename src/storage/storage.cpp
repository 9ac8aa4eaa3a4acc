#include "storage/storage.h"

#include <optional>
#include <utility>

#include "storage/device.h"
#include "storage/movable_storage.h"
#include "storage/own_work.h"

namespace sherd::detail {

std::shared_ptr<void> Storage::copy_to_device(const c10::Stream& stream, const at::Tensor& view,
                                              const at::Tensor& to) {
  CopyStreams::copy(stream, view, to);
  return nullptr;
}

void Storage::copy_to_host(const c10::Stream& stream, const at::Tensor& from,
                           const at::Tensor& view) {
  CopyStreams::copy(stream, from, view);
}

std::shared_ptr<void> Storage::read() {
  if (is_resident() || is_held()) {
    return nullptr;
  }
  hold(Access::Read);
  return {this, [](Storage* storage) { quietly([storage] { storage->drop(); }); }};
}

const at::Tensor& ResidentStorage::tensor() {
  if (!tensor_.defined()) {
    const std::int64_t bytes = numel_ * static_cast<std::int64_t>(c10::elementSize(dtype_));
    slot_ = bytes == 0 ? nullptr : slots_->acquire(bytes);
    tensor_ = flat_tensor(slot_, numel_, dtype_, device_);
  }
  return tensor_;
}

void ResidentStorage::discard() {
  if (slots_ != nullptr) {
    tensor_.reset();
    if (slot_ != nullptr) {
      slots_->release(std::exchange(slot_, nullptr), std::nullopt);
    }
  }
}

}  // namespace sherd::detail
