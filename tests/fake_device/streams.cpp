#include "tests/fake_device/streams.h"

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <random>
#include <thread>
#include <utility>

#include <c10/util/Exception.h>

#include "tests/fake_device/captures.h"

namespace sherd::fake {

struct Moment::State {
  std::mutex mutex;
  std::condition_variable came;
  bool has_come = false;
  std::chrono::steady_clock::time_point came_at;
};

std::shared_ptr<Moment::State> Moment::make_state() {
  return std::make_shared<State>();
}

bool Moment::has_come() const {
  const std::lock_guard lock(state_->mutex);
  return state_->has_come;
}

void Moment::wait() const {
  std::unique_lock lock(state_->mutex);
  state_->came.wait(lock, [&] { return state_->has_come; });
}

double Moment::seconds() const {
  const std::lock_guard lock(state_->mutex);
  return std::chrono::duration<double>(state_->came_at.time_since_epoch()).count();
}

void Moment::come() {
  const std::lock_guard lock(state_->mutex);
  state_->has_come = true;
  state_->came_at = std::chrono::steady_clock::now();
  state_->came.notify_all();
}

namespace {

std::atomic<std::uint64_t> seed_of_delays{1};

// Runs what it is given, one after the other, each after a random while.
class Worker {
 public:
  explicit Worker(int number) : number_(number), thread_([this] { run(); }) { thread_.detach(); }
  void push(std::function<void()> work) {
    const std::lock_guard lock(mutex_);
    queue_.push_back(std::move(work));
    filled_.notify_one();
  }

 private:
  [[noreturn]] void run() {
    std::mt19937_64 random(static_cast<std::uint64_t>(number_));
    for (;;) {
      std::unique_lock lock(mutex_);
      filled_.wait(lock, [&] { return !queue_.empty(); });
      const std::function<void()> work = std::move(queue_.front());
      queue_.pop_front();
      lock.unlock();
      if (const std::uint64_t seed = seed_of_delays; seed != 0) {
        const std::uint64_t draw = random() ^ (seed * 0x9e3779b97f4a7c15ULL);
        if (draw % 4 == 0) {  // often at once, sometimes long after
          std::this_thread::sleep_for(std::chrono::microseconds(draw % 499));
        }
      }
      work();
    }
  }

  int number_;
  std::mutex mutex_;
  std::condition_variable filled_;
  std::deque<std::function<void()>> queue_;
  std::thread thread_;
};

struct Timeline {
  int number = 0;
  Clock clock;
  std::string last;                  // operation
  std::uint64_t given = 0;           // operations, and those of streams that always follow it
  std::unique_ptr<Worker> worker;    // null: runs at once
  std::shared_ptr<Capture> capture;  // that keeps what it is given
};

// Of one device. Streams are issued to by one thread at a time, but read by others.
struct Device {
  std::mutex mutex;
  std::deque<Timeline> streams;  // the first is the default one
  std::vector<std::string> host_waits;
  std::vector<c10::StreamId> pool;
  std::size_t next_of_pool = 0;
  std::vector<c10::StreamId> given_back;
  std::vector<Wait> waits;
  int lost = -1;
  std::shared_ptr<Capture> capture;
  int launches = 0;
};

constexpr int kStreamsOfADevice = 4096;
constexpr std::size_t kPool = 8;

struct Devices {
  std::array<Device, kDevices> all;
  Accesses accesses;
  Devices() {
    for (int i = 0; i < kDevices; ++i) {
      all[static_cast<std::size_t>(i)].streams.emplace_back().number = i * kStreamsOfADevice;
    }
  }
};

// Lives as long as the threads, which are never joined.
Devices& devices() {
  static auto* const one = new Devices();
  return *one;
}

Device& device_of(c10::DeviceIndex index) {
  return devices().all.at(static_cast<std::size_t>(index));
}

Timeline& timeline(const c10::Stream& stream) {
  Device& device = device_of(stream.device_index());
  const std::lock_guard lock(device.mutex);
  return device.streams.at(static_cast<std::size_t>(stream.id()));
}

Range range_of(const at::Tensor& tensor) {
  if (tensor.numel() == 0) {
    return {};
  }
  std::int64_t last = 0;
  for (std::int64_t d = 0; d < tensor.dim(); ++d) {
    last += (tensor.size(d) - 1) * tensor.stride(d);
  }
  const auto begin = reinterpret_cast<std::uintptr_t>(tensor.const_data_ptr());
  return {begin, begin + static_cast<std::size_t>(last + 1) * tensor.element_size()};
}

struct Here {
  c10::DeviceIndex device = 0;
  std::array<c10::StreamId, kDevices> streams{};
};

Here& here() {
  static thread_local Here one;
  return one;
}

}  // namespace

TouchedRanges ranges_of(const Touched& touched) {
  const auto all = [](const std::vector<at::Tensor>& tensors) {
    std::vector<Range> ranges;
    for (const at::Tensor& tensor : tensors) {
      ranges.push_back(range_of(tensor));
    }
    return ranges;
  };
  return {all(touched.reads), all(touched.writes)};
}

void issue(const c10::Stream& stream, const std::string& name, const Touched& touched,
           std::function<void()> work) {
  issue(stream, name, ranges_of(touched), std::move(work));
}

void issue(const c10::Stream& stream, const std::string& name, const TouchedRanges& touched,
           std::function<void()> work) {
  if (const auto capture = capture_with(stream)) {
    capture->add(stream, name, touched, std::move(work));
    return;
  }
  count_launch(stream.device_index());
  repeat(stream, name, touched, std::move(work));
}

void repeat(const c10::Stream& stream, const std::string& name, const TouchedRanges& touched,
            std::function<void()> work) {
  Timeline& on = timeline(stream);
  on.clock.advance(on.number);
  on.last = name;
  ++on.given;
  const Operation operation{on.number, on.clock.of(on.number), name};
  for (const Range& range : touched.reads) {
    devices().accesses.note(range, false, operation, on.clock);
  }
  for (const Range& range : touched.writes) {
    devices().accesses.note(range, true, operation, on.clock);
  }
  if (on.worker == nullptr) {
    work();
  } else {
    on.worker->push(std::move(work));
  }
}

Moment record(const c10::Stream& stream) {
  Timeline& on = timeline(stream);
  Moment moment;
  moment.stream = on.number;
  if (on.capture != nullptr) {
    on.capture->record(stream, moment);
    return moment;
  }
  moment.clock = on.clock;
  moment.after = on.last;
  if (on.worker == nullptr) {
    moment.come();
  } else {
    on.worker->push([moment]() mutable { moment.come(); });
  }
  return moment;
}

void wait_for(const c10::Stream& stream, const Moment& moment) {
  Timeline& on = timeline(stream);
  on.clock.join(moment.clock);
  if (on.worker == nullptr) {
    moment.wait();
  } else {
    on.worker->push([moment] { moment.wait(); });
  }
}

namespace {

// What the wait is kept in; null: it takes place. An event is of use in its own capture alone.
std::shared_ptr<Capture> capture_of_wait(Device& device, const Timeline& on, const Moment& moment) {
  const std::lock_guard lock(device.mutex);
  TORCH_CHECK(moment.capture != 0 || on.capture == nullptr,
              "[fake device] a captured stream waits for an event from outside of the capture");
  if (moment.capture == 0) {
    return nullptr;
  }
  TORCH_CHECK(device.capture != nullptr && device.capture->number() == moment.capture,
              "[fake device] an event of a capture is waited for outside of it");
  return device.capture;
}

void wait_in(const std::shared_ptr<Capture>& capture, const c10::Stream& stream,
             const Moment& moment) {
  capture->wait(stream, moment);
  timeline(stream).capture = capture;
}

}  // namespace

void block(const c10::Stream& stream, const Moment& moment) {
  Device& device = device_of(stream.device_index());
  Timeline& on = timeline(stream);
  const auto capture = capture_of_wait(device, on, moment);
  if (on.number != moment.stream) {  // else they are in order anyway
    const std::lock_guard lock(device.mutex);
    const Timeline& other =
        device.streams.at(static_cast<std::size_t>(moment.stream % kStreamsOfADevice));
    const bool is_kept = capture != nullptr;
    device.waits.push_back(
        {on.number, moment.stream, moment.after,
         is_kept ? capture->orders(stream, moment) : !on.clock.knows(moment.clock), on.given,
         is_kept ? 0 : other.clock.of(moment.stream) - moment.clock.of(moment.stream)});
    if (static_cast<int>(device.waits.size()) == device.lost + 1) {
      return;
    }
  }
  if (capture != nullptr) {
    wait_in(capture, stream, moment);
  } else {
    wait_for(stream, moment);
  }
}

void follow(const c10::Stream& stream, const c10::Stream& followed) {
  ++timeline(followed).given;
  const Moment reached = record(followed);
  if (const auto capture =
          capture_of_wait(device_of(stream.device_index()), timeline(stream), reached)) {
    wait_in(capture, stream, reached);
  } else {
    wait_for(stream, reached);
  }
}

void begin_capture(const c10::Stream& stream, const std::shared_ptr<Capture>& capture) {
  TORCH_CHECK(stream.id() != 0, "[fake device] the default stream cannot be captured");
  finish(stream.device_index());
  Timeline& on = timeline(stream);
  Device& device = device_of(stream.device_index());
  const std::lock_guard lock(device.mutex);
  TORCH_CHECK(device.capture == nullptr, "[fake device] a capture is under way");
  device.capture = capture;
  on.capture = capture;
}

void end_capture(c10::DeviceIndex index) {
  Device& device = device_of(index);
  const std::lock_guard lock(device.mutex);
  device.capture.reset();
  for (Timeline& stream : device.streams) {
    stream.capture.reset();
  }
}

std::shared_ptr<Capture> capture_with(const c10::Stream& stream) {
  return timeline(stream).capture;
}

void refuse_captured(const c10::Stream& stream, const std::string& what) {
  TORCH_CHECK(capture_with(stream) == nullptr, "[fake device] the host waits in a capture: ", what);
}

void drain(const c10::Stream& stream) {
  refuse_captured(stream, "for all of a stream");
  if (Timeline& on = timeline(stream); on.worker != nullptr) {
    record(stream).wait();
  }
}

namespace {

void count_wait(c10::DeviceIndex index, const std::string& why) {
  Device& device = device_of(index);
  const std::lock_guard lock(device.mutex);
  device.host_waits.push_back(why);
}

}  // namespace

void synchronize(const c10::Stream& stream, const std::string& why) {
  refuse_captured(stream, why);
  count_wait(stream.device_index(), why);
  drain(stream);
}

void synchronize(c10::DeviceIndex index, const Moment& moment, const std::string& why) {
  TORCH_CHECK(moment.capture == 0, "[fake device] the host waits for an event of a capture");
  count_wait(index, why);
  moment.wait();
}

namespace {

c10::Stream stream_of(c10::Device device, c10::StreamId id) {
  return c10::Stream(c10::Stream::UNSAFE, device, id);
}

// With the device's mutex held.
c10::StreamId made_stream(Device& device, c10::DeviceIndex index) {
  const auto id = static_cast<c10::StreamId>(device.streams.size());
  Timeline& made = device.streams.emplace_back();
  made.number = index * kStreamsOfADevice + static_cast<int>(id);
  made.worker = std::make_unique<Worker>(made.number);
  return id;
}

}  // namespace

c10::Stream pool_stream(c10::Device on) {
  Device& device = device_of(on.index());
  const std::lock_guard lock(device.mutex);
  if (device.pool.size() < kPool) {
    device.pool.push_back(made_stream(device, on.index()));
  }
  return stream_of(on, device.pool[device.next_of_pool++ % device.pool.size()]);
}

c10::Stream take_stream(c10::Device on) {
  Device& device = device_of(on.index());
  const std::lock_guard lock(device.mutex);
  if (device.given_back.empty()) {
    return stream_of(on, made_stream(device, on.index()));
  }
  const c10::StreamId id = device.given_back.back();
  device.given_back.pop_back();
  return stream_of(on, id);
}

void give_back_stream(const c10::Stream& stream) {
  drain(stream);
  Device& device = device_of(stream.device_index());
  const std::lock_guard lock(device.mutex);
  device.given_back.push_back(stream.id());
}

c10::Stream default_stream(c10::Device device) {
  return c10::Stream(c10::Stream::UNSAFE, device, 0);
}

c10::Stream current_stream(c10::Device device) {
  const c10::DeviceIndex index = device.has_index() ? device.index() : here().device;
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(kDevice, index),
                     here().streams.at(static_cast<std::size_t>(index)));
}

c10::Stream exchange_stream(const c10::Stream& stream) {
  const c10::Stream before = current_stream(stream.device());
  here().streams.at(static_cast<std::size_t>(stream.device_index())) = stream.id();
  return before;
}

c10::DeviceIndex current_device() {
  return here().device;
}

void set_device(c10::DeviceIndex index) {
  here().device = index;
}

void take_memory(void* data, std::size_t bytes, const c10::Stream& stream) {
  Timeline& on = timeline(stream);
  const auto begin = reinterpret_cast<std::uintptr_t>(data);
  if (on.capture != nullptr) {
    return on.capture->own({begin, begin + bytes});  // it is used when that is launched
  }
  on.clock.advance(on.number);
  on.last = "allocation";
  devices().accesses.note({begin, begin + bytes}, true,
                          {on.number, on.clock.of(on.number), on.last}, on.clock);
}

void forget_memory(void* data, std::size_t bytes, const c10::Stream& stream) {
  const auto begin = reinterpret_cast<std::uintptr_t>(data);
  devices().accesses.forget({begin, begin + bytes}, timeline(stream).clock);
}

void forget_host_memory(const void* data, std::size_t bytes) {
  const auto begin = reinterpret_cast<std::uintptr_t>(data);
  devices().accesses.forget({begin, begin + bytes});
}

void finish(c10::DeviceIndex index) {
  Device& device = device_of(index);
  std::size_t streams = 0;
  {
    const std::lock_guard lock(device.mutex);
    streams = device.streams.size();
  }
  for (std::size_t id = 0; id < streams; ++id) {
    drain(c10::Stream(c10::Stream::UNSAFE, c10::Device(kDevice, index),
                      static_cast<c10::StreamId>(id)));
  }
}

void set_seed(std::uint64_t seed) {
  seed_of_delays = seed;
}

void note_fault(std::string description) {
  devices().accesses.note_fault(std::move(description));
}

std::vector<std::string> take_faults() {
  return devices().accesses.take_faults();
}

std::vector<std::string> take_host_waits(c10::DeviceIndex index) {
  Device& device = device_of(index);
  const std::lock_guard lock(device.mutex);
  return std::exchange(device.host_waits, {});
}

int take_launches(c10::DeviceIndex index) {
  Device& device = device_of(index);
  const std::lock_guard lock(device.mutex);
  return std::exchange(device.launches, 0);
}

void count_launch(c10::DeviceIndex index) {
  Device& device = device_of(index);
  const std::lock_guard lock(device.mutex);
  ++device.launches;
}

void lose_wait(c10::DeviceIndex index, int number) {
  Device& device = device_of(index);
  const std::lock_guard lock(device.mutex);
  device.lost = number;
  device.waits.clear();
}

std::vector<Wait> waits(c10::DeviceIndex index) {
  Device& device = device_of(index);
  const std::lock_guard lock(device.mutex);
  return device.waits;
}

}  // namespace sherd::fake
