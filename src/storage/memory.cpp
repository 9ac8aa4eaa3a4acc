#include "sherd/memory.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <string>
#include <utility>

#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>
#include <c10/util/Exception.h>
#include <sys/mman.h>

#include "sherd/error.h"
#include "storage/device.h"
#include "storage/movable_storage.h"
#include "storage/own_work.h"

namespace sherd {

namespace {

// By MemoryKind.
constexpr const char* kNames[] = {"master shards",
                                  "travelling shards",
                                  "optimizer state",
                                  "gradient shards",
                                  "unsharded gradients",
                                  "shards kept after forward",
                                  "gathered parameters",
                                  "gradients to be reduced",
                                  "gradients to be received",
                                  "slots of what is offloaded"};
static_assert(std::size(kNames) == kMemoryKinds);

const char* name_of(MemoryKind kind) {
  return kNames[static_cast<std::size_t>(kind)];
}

[[noreturn]] void refused(std::int64_t bytes, MemoryKind kind, const std::string& why) {
  throw Error(ExitCode::OutOfMemory, "out of memory: " + std::to_string(bytes) + " bytes of " +
                                         name_of(kind) + " could not be allocated (" + why +
                                         "). ShardedModule::planned_peak_bytes() says what "
                                         "training needs; use more ranks or smaller units.");
}

c10::DataPtr mapped(std::int64_t bytes, MemoryKind kind) {
  detail::Mapping memory = detail::map_memory(bytes, PROT_READ | PROT_WRITE);
  if (memory == nullptr) {
    refused(bytes, kind, std::strerror(errno));
  }
  if (bytes >= detail::kHugePage) {
    madvise(memory.get(), static_cast<std::size_t>(bytes), MADV_HUGEPAGE);
  }
  auto* const owner = new detail::Mapping(std::move(memory));
  return {owner->get(), owner, [](void* held) { delete static_cast<detail::Mapping*>(held); },
          c10::kCPU};
}

c10::DataPtr zeroed_on(c10::Device device, std::int64_t bytes, MemoryKind kind) {
  const c10::DeviceGuard guard(device);  // allocators use the thread's current device
  try {
    c10::DataPtr data = c10::GetAllocator(device.type())->allocate(static_cast<std::size_t>(bytes));
    detail::flat_tensor(data.get(), bytes, c10::kByte, device).zero_();
    return data;
  } catch (const c10::OutOfMemoryError& error) {
    refused(bytes, kind, error.what_without_backtrace());
  }
}

// On the meta device there is nothing to point at, but buffers are told apart by their addresses.
c10::DataPtr on_meta(std::int64_t bytes, MemoryKind kind) {
  const auto range = detail::profiler_range(name_of(kind));
  auto* const memory =
      new c10::DataPtr(c10::GetAllocator(c10::kMeta)->allocate(static_cast<std::size_t>(bytes)));
  return {memory, memory, [](void* held) { delete static_cast<c10::DataPtr*>(held); }, c10::kMeta};
}

}  // namespace

void MemoryLedger::add(MemoryKind kind, std::int64_t bytes) noexcept {
  bytes_[static_cast<std::size_t>(kind)] += bytes;
  total_ += bytes;
  peak_ = std::max(peak_, total_);
  ++changes_;
}

std::int64_t MemoryLedger::sharded_state_bytes() const noexcept {
  return bytes(MemoryKind::MasterShard) + bytes(MemoryKind::TravellingShard) +
         bytes(MemoryKind::OptimizerState);
}

Buffer::Buffer(std::int64_t bytes, MemoryKind kind, std::shared_ptr<MemoryLedger> ledger,
               c10::Device device)
    : bytes_(bytes), kind_(kind), ledger_(std::move(ledger)) {
  if (bytes == 0) {
    return;
  }
  if (device.is_cpu()) {
    data_ = mapped(bytes, kind);
  } else if (device.is_meta()) {
    data_ = on_meta(bytes, kind);
  } else {
    data_ = zeroed_on(device, bytes, kind);
  }
  ledger_->add(kind_, bytes_);
}

Buffer::Buffer(Buffer&& other) noexcept {
  *this = std::move(other);
}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  if (this != &other) {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(kind_, other.kind_);
    std::swap(ledger_, other.ledger_);
  }
  return *this;
}

Buffer::~Buffer() {
  if (bytes_ > 0) {
    ledger_->add(kind_, -bytes_);
  }
}

HostCopy::HostCopy(const at::Tensor& tensor) {
  detail::own_work([&] {
    const at::Tensor source = tensor.detach();
    if (source.is_cpu()) {
      on_host_ = source.clone();
      return;
    }
    on_host_ = at::empty(source.sizes(), source.options().device(at::kCPU)).pin_memory();
    on_host_.copy_(source, /*non_blocking=*/true);
    come_ = detail::reached_by_current_stream(source.device());
  });
}

const at::Tensor& HostCopy::wait() const {
  if (come_) {
    come_->synchronize();
  }
  return on_host_;
}

at::Tensor to_device(const at::Tensor& tensor, c10::Device device) {
  const bool crosses = tensor.is_cpu() && !device.is_cpu() && !device.is_meta();
  if (!crosses || tensor.requires_grad() || tensor.numel() == 0) {
    return tensor.to(device);
  }
  if (detail::capture_of(device) != 0) {
    throw Error(ExitCode::Usage,
                "[to_device] a tensor of the host, of " + std::to_string(tensor.numel()) +
                    " elements, is moved to " + device.str() +
                    " in a micro-batch that is captured as a graph, which would read the host's "
                    "memory again each time: pass it as an input.");
  }
  return tensor.pin_memory().to(device, /*non_blocking=*/true);
}

}  // namespace sherd
