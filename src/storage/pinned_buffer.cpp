#include "storage/pinned_buffer.h"

#include <array>
#include <atomic>
#include <string>
#include <utility>

#include <c10/core/DeviceGuard.h>

#include "sherd/error.h"

namespace sherd::detail {

namespace {

std::atomic<const HostPinning*>& pinning_for(c10::DeviceType type) {
  static std::array<std::atomic<const HostPinning*>, c10::COMPILE_TIME_MAX_DEVICE_TYPES> all{};
  return all.at(static_cast<std::size_t>(type));
}

c10::Device where_it_lies(c10::Device device) {
  return device.is_meta() ? device : c10::Device(c10::kCPU);
}

}  // namespace

void set_host_pinning(c10::DeviceType type, const HostPinning* pinning) {
  pinning_for(type) = pinning;
}

PinnedBuffer::PinnedBuffer(std::int64_t bytes, MemoryKind kind,
                           std::shared_ptr<MemoryLedger> ledger, c10::Device device)
    : device_(where_it_lies(device)),
      ledger_(std::move(ledger)),
      bytes_(bytes),
      // In a ledger of its own: the model's counts what lies on the device.
      memory_(device.is_meta() ? 0 : bytes, kind, std::make_shared<MemoryLedger>(), device_),
      data_(device.is_meta() ? this : memory_.data()) {
  const HostPinning* const pinning = pinning_for(device.type()).load();
  if (pinning != nullptr && bytes > 0) {
    const c10::DeviceGuard guard(device);
    if (!pinning->pin(data_, bytes)) {
      throw Error(ExitCode::OutOfMemory,
                  "out of memory: " + std::to_string(bytes) +
                      " bytes of the host could not be pinned for " + device.str() +
                      ". `free -m` says what the host has; offload less (ShardOptions::offload), "
                      "or use more hosts.");
    }
    pinned_by_ = pinning;
    pinned_for_ = device;
  }
  ledger_->add_on_host(bytes);
}

PinnedBuffer::~PinnedBuffer() {
  if (pinned_by_ != nullptr) {
    const c10::DeviceGuard guard(pinned_for_);  // else a context is made on another
    pinned_by_->unpin(data_);
  }
  ledger_->add_on_host(-bytes_);
}

}  // namespace sherd::detail
