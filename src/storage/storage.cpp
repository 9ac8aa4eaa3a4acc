#include "storage/storage.h"

#include <algorithm>
#include <exception>

#include "storage/movable_storage.h"
#include "storage/streams.h"

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
  return {this, [](Storage* storage) {
            try {
              storage->drop();
            } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): as each later call
            }                                  // to the device says
          }};
}

Buffer SpareBuffers::take(std::int64_t bytes, MemoryKind kind,
                          const std::shared_ptr<MemoryLedger>& ledger, c10::Device device) {
  const auto found = std::find_if(buffers_.begin(), buffers_.end(),
                                  [&](const Buffer& buffer) { return buffer.bytes() == bytes; });
  if (found == buffers_.end()) {
    return {bytes, kind, ledger, device};
  }
  Buffer taken = std::move(*found);
  buffers_.erase(found);
  return taken;
}

ResidentStorage::ResidentStorage(std::int64_t numel, c10::ScalarType dtype, MemoryKind kind,
                                 std::shared_ptr<MemoryLedger> ledger, c10::Device device,
                                 std::shared_ptr<SpareBuffers> spare)
    : numel_(numel),
      dtype_(dtype),
      kind_(kind),
      ledger_(std::move(ledger)),
      device_(device),
      spare_(std::move(spare)) {
  if (spare_ == nullptr) {
    static_cast<void>(ResidentStorage::tensor());
  }
}

const at::Tensor& ResidentStorage::tensor() {
  if (!tensor_.defined()) {
    const std::int64_t bytes = numel_ * static_cast<std::int64_t>(c10::elementSize(dtype_));
    buffer_ = spare_ == nullptr ? Buffer(bytes, kind_, ledger_, device_)
                                : spare_->take(bytes, kind_, ledger_, device_);
    tensor_ = flat_tensor(buffer_.data(), numel_, dtype_, device_);
  }
  return tensor_;
}

void ResidentStorage::discard() {
  if (spare_ != nullptr) {
    tensor_.reset();
    spare_->give(std::move(buffer_));
  }
}

}  // namespace sherd::detail
