#include "storage/host_home.h"

#include <exception>
#include <utility>

#include "storage/copy_streams.h"
#include "storage/movable_storage.h"

namespace sherd::detail {

HostHome::HostHome(std::shared_ptr<HostStore> store, std::int64_t bytes, MemoryKind kind,
                   std::shared_ptr<OffloadStore> disk)
    : store_(std::move(store)), bytes_(bytes) {
  if (disk != nullptr) {
    on_disk_ = std::make_unique<SegmentHome>(std::move(disk), bytes);
  } else {
    pinned_.emplace(bytes, kind, store_->ledger(), store_->device());
  }
}

HostHome::~HostHome() {
  try {
    store_->settle();
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): the device is of no use
  }
}

at::Tensor HostHome::view(std::int64_t offset, std::int64_t numel, c10::ScalarType dtype) const {
  return on_disk_ != nullptr ? on_disk_->view(offset, numel, dtype)
                             : flat_tensor(static_cast<char*>(pinned_->data()) + offset, numel,
                                           dtype, pinned_->device());
}

std::shared_ptr<void> HostHome::use(const at::Tensor& view, bool writes) {
  store_->settle();
  return on_disk_ == nullptr ? nullptr : on_disk_->use(view, writes);
}

void HostHome::read_ahead(const at::Tensor& view) {
  if (on_disk_ != nullptr) {
    on_disk_->fetch(view);
  }
}

std::shared_ptr<void> HostHome::copy_to_device(const c10::Stream& stream, const at::Tensor& view,
                                               const at::Tensor& to) {
  if (on_disk_ == nullptr) {
    CopyStreams::copy(stream, view, to);
    return nullptr;
  }
  auto in_use = on_disk_->use(view, /*writes=*/false);
  CopyStreams::copy(stream, view, to);
  stream.synchronize();
  return in_use;
}

void HostHome::copy_to_host(const c10::Stream& stream, const at::Tensor& from,
                            const at::Tensor& view) {
  if (on_disk_ == nullptr) {
    return CopyStreams::copy(stream, from, view);
  }
  const bool is_all = static_cast<std::int64_t>(view.nbytes()) == bytes_;
  const auto in_use = is_all ? on_disk_->use_anew() : on_disk_->use(view, /*writes=*/true);
  CopyStreams::copy(stream, from, view);
  stream.synchronize();
}

void HostHome::write_back(const at::Tensor& view) {
  if (on_disk_ != nullptr) {
    on_disk_->write_back(view);
  }
}

}  // namespace sherd::detail
