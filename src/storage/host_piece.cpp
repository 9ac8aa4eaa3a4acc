#include "storage/host_piece.h"

#include <utility>

#include "storage/movable_storage.h"

namespace sherd::detail {

HostPiece::HostPiece(std::shared_ptr<HostStore> store, std::int64_t numel, c10::ScalarType dtype,
                     MemoryKind kind, std::shared_ptr<OffloadStore> disk)
    : home_(std::move(store), numel * static_cast<std::int64_t>(c10::elementSize(dtype)), kind,
            std::move(disk)),
      on_host_(home_.view(0, numel, dtype)) {}

at::Tensor HostPiece::at(void* place) const {
  return flat_tensor(place, on_host_.numel(), on_host_.scalar_type(), store().device());
}

void HostPiece::fetch(void* place, const c10::Event* free) {
  const CopyStreams* const streams = store().piece_streams();
  if (streams == nullptr) {
    return;
  }
  if (written_) {
    written_->block(streams->to_device());
  }
  if (free != nullptr) {
    free->block(streams->to_device());
  }
  static_cast<void>(home_.copy_to_device(streams->to_device(), on_host_, at(place)));
  fetched_ = streams->reached(streams->to_device());
}

void HostPiece::await() const {
  if (fetched_) {
    fetched_->block(store().piece_streams()->current());
  }
}

void HostPiece::write_back(void* place) {
  if (const CopyStreams* const streams = store().piece_streams()) {
    CopyStreams::order(streams->current(), streams->to_host());
    home_.copy_to_host(streams->to_host(), at(place), on_host_);
    home_.write_back(on_host_);
    written_ = CopyStreams::reached(streams->to_host());
  }
}

void HostPiece::await_write() const {
  if (written_) {
    written_->block(store().piece_streams()->current());
  }
}

}  // namespace sherd::detail
