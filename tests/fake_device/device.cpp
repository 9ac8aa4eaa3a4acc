// The fake device as LibTorch sees it: memory, streams, events, and no arithmetic (operators.cpp).

#include "storage/device.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <map>
#include <mutex>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/Allocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Exception.h>

#include "kernels/shard_math.h"
#include "tests/fake_device/captures.h"
#include "tests/fake_device/fake_device.h"
#include "tests/fake_device/shard_kernels.h"
#include "tests/fake_device/streams.h"

namespace sherd::fake {
namespace {

struct Block {
  void* data;
  std::size_t bytes;
  c10::Stream stream;
};

std::atomic<std::size_t> memory_limit{0};
std::atomic<std::size_t> memory_in_use{0};
std::atomic<std::size_t> pinned_limit{0};

void take(std::size_t bytes) {
  if (memory_limit != 0 && memory_in_use + bytes > memory_limit) {
    TORCH_CHECK_WITH(OutOfMemoryError, false, "the fake device has no ", bytes, " bytes left");
  }
  memory_in_use += bytes;
}

void give_back(void* context) {
  auto* const block = static_cast<Block*>(context);
  memory_in_use -= block->bytes;
  forget_memory(block->data, block->bytes, block->stream);
  std::free(block->data);  // NOLINT(cppcoreguidelines-no-malloc)
  delete block;
}

class DeviceAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    constexpr std::size_t kAlignment = 512;  // as CUDA's
    const c10::Device device(kDevice, current_device());
    if (bytes == 0) {
      return {nullptr, device};
    }
    take(bytes);
    const std::size_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    void* const data = std::aligned_alloc(kAlignment, rounded);
    const c10::Stream stream = current_stream(device);
    take_memory(data, bytes, stream);
    return {data, new Block{data, bytes, stream}, &give_back, device};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &give_back; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
};

// Pinned memory, by its first byte and the byte behind it.
struct Pinned {
  std::mutex mutex;
  std::map<const void*, const void*> blocks;
};

Pinned& pinned() {
  static auto* const one = new Pinned();
  return *one;
}

void note_pinned(void* data, std::size_t bytes) {
  const std::lock_guard lock(pinned().mutex);
  pinned().blocks[data] = static_cast<const char*>(data) + bytes;
}

void forget_pinned(const void* data) {
  const std::lock_guard lock(pinned().mutex);
  const auto block = pinned().blocks.find(data);
  forget_host_memory(data, static_cast<std::size_t>(static_cast<const char*>(block->second) -
                                                    static_cast<const char*>(data)));
  pinned().blocks.erase(block);
}

bool pin(void* data, std::int64_t bytes) {
  if (pinned_limit != 0 && static_cast<std::size_t>(bytes) > pinned_limit) {
    return false;
  }
  note_pinned(data, static_cast<std::size_t>(bytes));
  return true;
}

void unpin(void* data) {
  forget_pinned(data);
}

class PinnedAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    void* const data = std::malloc(std::max<std::size_t>(bytes, 1));  // NOLINT
    note_pinned(data, bytes);
    return {data, data, &free_pinned, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_pinned; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

 private:
  static void free_pinned(void* data) {
    forget_pinned(data);
    std::free(data);  // NOLINT(cppcoreguidelines-no-malloc)
  }
};

bool is_pinned(const void* data) {
  const std::lock_guard lock(pinned().mutex);
  const auto after = pinned().blocks.upper_bound(data);
  return after != pinned().blocks.begin() && data < std::prev(after)->second;
}

Moment& moment_of(void* event) {
  return *static_cast<Moment*>(event);
}

class GuardImpl final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return kDevice; }
  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device before = getDevice();
    setDevice(device);
    return before;
  }
  c10::Device getDevice() const override { return {kDevice, current_device()}; }
  void setDevice(c10::Device device) const override { uncheckedSetDevice(device); }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.has_index()) {
      set_device(device.index());
    }
  }
  c10::Stream getStream(c10::Device device) const override { return current_stream(device); }
  // The engine's kernels go to the current one (shard_kernels.cpp).
  void* getStreamNativeHandle(const c10::Stream /*stream*/) const override { return nullptr; }
  c10::Stream getDefaultStream(c10::Device device) const override { return default_stream(device); }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool /*is_high*/) const override {
    return pool_stream(device);
  }
  c10::Stream getNewStream(c10::Device device, int /*priority*/) const override {
    return pool_stream(device);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override { return exchange_stream(stream); }
  void destroyEvent(void* event, c10::DeviceIndex /*device*/) const noexcept override {
    delete static_cast<Moment*>(event);
  }
  void record(void** event, const c10::Stream& stream, c10::DeviceIndex /*device*/,
              c10::EventFlag /*flag*/) const override {
    delete static_cast<Moment*>(*event);
    *event = new Moment(fake::record(stream));
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event != nullptr) {
      fake::block(stream, moment_of(event));
    }
  }
  bool queryEvent(void* event) const override {
    return event == nullptr || moment_of(event).has_come();
  }
  c10::DeviceIndex deviceCount() const noexcept override { return kDevices; }
  void synchronizeStream(const c10::Stream& stream) const override {
    synchronize(stream, "synchronize a stream");
  }
  void synchronizeEvent(void* event) const override {
    if (event != nullptr) {
      synchronize(current_device(), moment_of(event), "synchronize an event");
    }
  }
  double elapsedTime(void* from, void* to, c10::DeviceIndex /*device*/) const override {
    return (moment_of(to).seconds() - moment_of(from).seconds()) * 1e3;
  }
};

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex /*device*/) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return kDevices; }
  void setCurrentDevice(c10::DeviceIndex index) const override { set_device(index); }
  c10::DeviceIndex getCurrentDevice() const override { return current_device(); }
  bool isPinnedPtr(const void* data) const override { return is_pinned(data); }
  at::Allocator* getPinnedMemoryAllocator() const override {
    static PinnedAllocator allocator;
    return &allocator;
  }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex /*device*/) const override {
    return at::detail::getDefaultCPUGenerator();
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, GuardImpl);

}  // namespace

void set_memory_limit(std::size_t bytes) {
  memory_limit = bytes == 0 ? 0 : memory_in_use + bytes;
}

void set_pinned_limit(std::size_t bytes) {
  pinned_limit = bytes;
}

void register_device() {
  static const bool once = [] {
    static DeviceAllocator allocator;
    static Hooks hooks;
    static detail::DeviceFunctions functions = capture_functions();
    functions.pin = &pin;
    functions.unpin = &unpin;
    c10::register_privateuse1_backend("fake");
    c10::SetAllocator(kDevice, &allocator);
    at::RegisterPrivateUse1HooksInterface(&hooks);
    detail::set_device_kernels(kDevice, fake_kernels());
    detail::set_device_functions(kDevice, &functions);
    return true;
  }();
  static_cast<void>(once);
}

}  // namespace sherd::fake
