#include "storage/device.h"

#include <array>
#include <atomic>
#include <string>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>
#include <sys/mman.h>

#include "sherd/error.h"
#include "storage/own_work.h"

namespace sherd::detail {

namespace {

// What the library of a kind of devices has registered.
std::atomic<const DeviceFunctions*>& registered(c10::DeviceType type) {
  static std::array<std::atomic<const DeviceFunctions*>, c10::COMPILE_TIME_MAX_DEVICE_TYPES> all{};
  return all.at(static_cast<std::size_t>(type));
}

bool has_events(c10::Device device) {
  return !device.is_cpu() && !device.is_meta();
}

c10::Stream stream_for_copies(c10::Device device) {
  return device.is_meta() ? c10::Stream(c10::Stream::DEFAULT, device)
                          : side_stream(device, StreamPriority::Normal);
}

}  // namespace

std::optional<c10::Event> reached_by_current_stream(c10::Device device) {
  return has_events(device) ? CopyStreams::reached(current_stream(device)) : std::nullopt;
}

CopyStreams::CopyStreams(c10::Device device)
    : to_device_(stream_for_copies(device)), to_host_(stream_for_copies(device)) {}

CopyStreams::~CopyStreams() {
  quietly([this] {
    order(to_device_, current());
    order(to_host_, current());
  });
}

void CopyStreams::order(const std::optional<c10::Event>& earlier, const c10::Stream& later) {
  if (earlier) {
    earlier->block(later);
  }
}

std::optional<c10::Event> CopyStreams::reached(const c10::Stream& stream) {
  std::optional<c10::Event> event;
  if (has_events(stream.device())) {
    event.emplace(stream.device_type());
    event->record(stream);
  }
  return event;
}

void CopyStreams::copy(const c10::Stream& stream, const at::Tensor& from, const at::Tensor& to) {
  if (stream.device().is_meta()) {
    return;
  }
  const at::NoGradGuard no_grad;
  const c10::StreamGuard guard(stream);
  at::Tensor target = to;
  target.copy_(from, /*non_blocking=*/true);
}

void CopyStreams::synchronize(const c10::Stream& stream) {
  if (has_events(stream.device())) {
    stream.synchronize();
  }
}

void CopyStreams::synchronize() const {
  synchronize(to_device_);
  synchronize(to_host_);
}

void set_device_functions(c10::DeviceType type, const DeviceFunctions* functions) {
  registered(type) = functions;
}

const DeviceFunctions* device_functions(c10::DeviceType type) {
  return registered(type).load();
}

std::uint64_t capture_of(const c10::Stream& stream) {
  const DeviceFunctions* const functions = device_functions(stream.device_type());
  return functions == nullptr ? 0 : functions->capture_of(stream);
}

std::uint64_t capture_of(c10::Device device) {
  return device_functions(device.type()) == nullptr ? 0 : capture_of(current_stream(device));
}

DeviceGraph::DeviceGraph(const c10::Stream& stream, const DeviceGraph* other,
                         const std::function<void()>& work)
    : functions_(device_functions(stream.device_type())) {
  const c10::StreamGuard guard(stream);
  graph_ = functions_->begin_capture(other == nullptr ? nullptr : other->graph_);
  try {
    work();
  } catch (...) {
    quietly([this] { functions_->end_capture(graph_.get()); });
    throw;
  }
  functions_->end_capture(graph_.get());
}

void DeviceGraph::launch() const {
  functions_->launch(graph_.get());
}

void Unmap::operator()(void* data) const {
  ::munmap(data, static_cast<std::size_t>(bytes));
}

// A large mapping is aligned by mapping a little more.
Mapping map_memory(std::int64_t bytes, int protection, int flags) {
  constexpr std::size_t kPageBytes = 4096;
  constexpr auto kHuge = static_cast<std::size_t>(kHugePage);
  const std::size_t more = bytes >= kHugePage ? kHuge : 0;
  const std::size_t size = static_cast<std::size_t>(bytes) + more;
  void* const base = ::mmap(nullptr, size, protection, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
  if (base == MAP_FAILED || more == 0) {
    return {base == MAP_FAILED ? nullptr : base, Unmap{bytes}};
  }
  auto* const start = static_cast<char*>(base);
  const std::size_t before = (kHuge - reinterpret_cast<std::uintptr_t>(base) % kHuge) % kHuge;
  const std::size_t end = (before + size - more + kPageBytes - 1) / kPageBytes * kPageBytes;
  if (before > 0) {
    ::munmap(start, before);
  }
  if (end < size) {
    ::munmap(start + end, size - end);
  }
  return {start + before, Unmap{bytes}};
}

PinnedBuffer::PinnedBuffer(std::int64_t bytes, MemoryKind kind,
                           std::shared_ptr<MemoryLedger> ledger, c10::Device device)
    : device_(device.is_meta() ? device : c10::Device(c10::kCPU)),
      ledger_(std::move(ledger)),
      bytes_(bytes),
      // In a ledger of its own: the model's counts what lies on the device.
      memory_(device.is_meta() ? 0 : bytes, kind, std::make_shared<MemoryLedger>(), device_),
      data_(device.is_meta() ? this : memory_.data()) {
  const DeviceFunctions* const functions = device_functions(device.type());
  if (functions != nullptr && bytes > 0) {
    const c10::DeviceGuard guard(device);
    if (!functions->pin(data_, bytes)) {
      throw Error(ExitCode::OutOfMemory,
                  "out of memory: " + std::to_string(bytes) +
                      " bytes of the host could not be pinned for " + device.str() +
                      ". `free -m` says what the host has; offload less (ShardOptions::offload), "
                      "or use more hosts.");
    }
    pinned_ = {data_, [functions, device](void* pinned) {
                 const c10::DeviceGuard on(device);  // else a context is made on another
                 functions->unpin(pinned);
               }};
  }
  ledger_->add_on_host(bytes);
}

PinnedBuffer::~PinnedBuffer() {
  ledger_->add_on_host(-bytes_);
}

}  // namespace sherd::detail
