#include "tests/fake_device/nccl.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <mutex>
#include <utility>

#include "sherd/error.h"

namespace sherd::fake {
namespace {

// Which rank's network fails, and when.
struct Broken {
  std::atomic<int> rank = -1;
  std::atomic<bool> at_connect = false;
  std::atomic<int> exchanges_left = 0;
  // Whether it is now, at an exchange of the rank, that it does.
  bool is_reached_by(int of_rank) { return of_rank == rank && --exchanges_left == 0; }
};

Broken& broken() {
  static Broken one;
  return one;
}

constexpr const char* kRefused = "socketStartConnect: Connect to 10.0.0.7<41231> failed : Refused";
constexpr const char* kRetries = "NET/IB: got completion with error 12, retry counter exceeded";
constexpr const char* kClosed = "socketProgress: connection closed by remote peer";

// Where the streams of all ranks meet, for one collective after the other.
class Meeting {
 public:
  explicit Meeting(int size) : shown_(static_cast<std::size_t>(size)) {}

  // What each rank shows, when all have. False where the group was ended.
  bool show(int rank, const void* mine, std::vector<const void*>& all) {
    std::unique_lock lock(mutex_);
    shown_[static_cast<std::size_t>(rank)] = mine;
    if (!meet(lock)) {
      return false;
    }
    all = shown_;
    return true;
  }
  // All have read what was shown.
  void leave() {
    std::unique_lock lock(mutex_);
    static_cast<void>(meet(lock));
  }
  void end() {
    const std::lock_guard lock(mutex_);
    has_ended_ = true;
    changed_.notify_all();
  }
  // As by a network that breaks: what waits ends, and has taken nothing.
  void fail() {
    const std::lock_guard lock(mutex_);
    has_failed_ = true;
    changed_.notify_all();
  }
  [[nodiscard]] bool has_failed() {
    const std::lock_guard lock(mutex_);
    return has_failed_;
  }
  [[nodiscard]] bool has_ended() {
    const std::lock_guard lock(mutex_);
    return has_ended_;
  }

 private:
  bool meet(std::unique_lock<std::mutex>& lock) {
    const std::uint64_t round = round_;
    if (++arrived_ == shown_.size()) {
      arrived_ = 0;
      ++round_;
      changed_.notify_all();
    }
    changed_.wait(lock, [&] { return round_ != round || has_ended_ || has_failed_; });
    return !has_ended_ && !has_failed_;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<const void*> shown_;
  std::size_t arrived_ = 0;
  std::uint64_t round_ = 0;
  bool has_ended_ = false;
  bool has_failed_ = false;
};

class FakeWork final : public c10d::Work {
 public:
  FakeWork(Moment end, c10::Device device, std::shared_ptr<Meeting> meeting)
      : end_(std::move(end)), device_(device), meeting_(std::move(meeting)) {}
  bool isCompleted() override { return end_.has_come(); }
  bool wait(std::chrono::milliseconds /*timeout*/) override {
    block(current_stream(device_), end_);
    TORCH_CHECK(!meeting_->has_ended(), "[fake NCCL] the group was ended");
    return true;
  }

 private:
  Moment end_;
  c10::Device device_;
  std::shared_ptr<Meeting> meeting_;
};

class FakeNccl final : public c10d::Backend {
 public:
  FakeNccl(std::shared_ptr<Meeting> meeting, int rank, int size, c10::Device device)
      : c10d::Backend(rank, size),
        meeting_(std::move(meeting)),
        device_(device),
        stream_(take_stream(device_)) {}
  FakeNccl(const FakeNccl&) = delete;
  FakeNccl& operator=(const FakeNccl&) = delete;
  ~FakeNccl() override {
    if (has_exchanged_ && !is_shut_down_ && !meeting_->has_ended() && !meeting_->has_failed()) {
      note_fault("a process group of " + device_.str() + " went without a shutdown");
    }
    give_back_stream(stream_);
  }

  void eagerConnectSingleDevice(at::Device device) override {
    TORCH_CHECK_WITH(
        DistBackendError, device.index() != broken().rank || !broken().at_connect,
        "NCCL error in: ProcessGroupNCCL.cpp:1, unhandled system error, NCCL version 2\n",
        last_nccl_error(device.index()));
  }
  c10d::ErrorType getError() override {
    return meeting_->has_failed() ? c10d::ErrorType::COMM_ERROR : c10d::ErrorType::SUCCESS;
  }
  const std::string getBackendName() const override { return "nccl"; }  // NOLINT
  c10::intrusive_ptr<c10d::Work> _allgather_base(at::Tensor& out, at::Tensor& in,
                                                 const c10d::AllgatherOptions& /*o*/) override {
    const std::size_t bytes = in.nbytes();
    return run("all-gather", out, in,
               [bytes, to = static_cast<char*>(out.mutable_data_ptr())](
                   const std::vector<const void*>& all) {
                 for (std::size_t peer = 0; peer < all.size(); ++peer) {
                   if (to + peer * bytes != all[peer]) {  // else it gathers in place
                     std::memcpy(to + peer * bytes, all[peer], bytes);
                   }
                 }
               });
  }
  c10::intrusive_ptr<c10d::Work> alltoall_base(at::Tensor& out, at::Tensor& in,
                                               std::vector<int64_t>& /*out_splits*/,
                                               std::vector<int64_t>& /*in_splits*/,
                                               const c10d::AllToAllOptions& /*o*/) override {
    const std::size_t bytes = in.nbytes() / static_cast<std::size_t>(getSize());
    const auto mine = static_cast<std::size_t>(getRank()) * bytes;
    return run(
        "all-to-all", out, in,
        [bytes, mine,
         to = static_cast<char*>(out.mutable_data_ptr())](const std::vector<const void*>& all) {
          for (std::size_t peer = 0; peer < all.size(); ++peer) {
            std::memcpy(to + peer * bytes, static_cast<const char*>(all[peer]) + mine, bytes);
          }
        });
  }
  c10::intrusive_ptr<c10d::Work> alltoall(std::vector<at::Tensor>& out, std::vector<at::Tensor>& in,
                                          const c10d::AllToAllOptions& /*o*/) override {
    const std::size_t bytes = in.front().nbytes();
    // A rank shows the addresses of what it sends, which its stream keeps.
    auto sent = std::make_shared<std::vector<const void*>>();
    std::vector<void*> places;
    for (std::size_t peer = 0; peer < in.size(); ++peer) {
      sent->push_back(in[peer].const_data_ptr());
      places.push_back(out[peer].mutable_data_ptr());
    }
    const auto own = static_cast<std::size_t>(getRank());
    return run("all-to-all", out, in, sent->data(),
               [bytes, own, places, sent](const std::vector<const void*>& all) {
                 for (std::size_t peer = 0; peer < all.size(); ++peer) {
                   const auto* const of_peer = static_cast<const void* const*>(all[peer]);
                   std::memcpy(places[peer], of_peer[own], bytes);
                 }
               });
  }
  c10::intrusive_ptr<c10d::Work> _reduce_scatter_base(
      at::Tensor& out, at::Tensor& in, const c10d::ReduceScatterOptions& /*o*/) override {
    const auto numel = static_cast<std::size_t>(out.numel());
    const std::size_t first = static_cast<std::size_t>(getRank()) * numel;
    void* const to = out.mutable_data_ptr();
    const bool is_float = out.scalar_type() == at::kFloat;
    return run("reduce-scatter", out, in, [=, this](const std::vector<const void*>& all) {
      is_float ? sum_as_a_ring<float>(all, first, numel, static_cast<float*>(to))
               : sum_as_a_ring<c10::BFloat16>(all, first, numel, static_cast<c10::BFloat16*>(to));
    });
  }
  void abort() override { meeting_->end(); }
  void shutdown() override { is_shut_down_ = true; }

 private:
  // From the next rank on round to the own one, which is not the order of ranks.
  template <class T>
  void sum_as_a_ring(const std::vector<const void*>& all, std::size_t first, std::size_t numel,
                     T* to) const {
    std::vector<T> sum(numel, T(0.0F));
    for (std::size_t step = 1; step <= all.size(); ++step) {
      const std::size_t peer = (static_cast<std::size_t>(getRank()) + step) % all.size();
      const T* const piece = static_cast<const T*>(all[peer]) + first;
      std::transform(sum.begin(), sum.end(), piece, sum.begin(), std::plus<>());
    }
    std::copy(sum.begin(), sum.end(), to);
  }
  // On the group's own stream, after what the current one was given so far.
  c10::intrusive_ptr<c10d::Work> run(
      const std::string& name, const at::Tensor& out, const at::Tensor& in,
      const std::function<void(const std::vector<const void*>&)>& take) {
    return run(name, std::vector<at::Tensor>{out}, std::vector<at::Tensor>{in}, in.const_data_ptr(),
               take);
  }
  // `shown`: what this rank shows the others.
  c10::intrusive_ptr<c10d::Work> run(
      const std::string& name, const std::vector<at::Tensor>& out,
      const std::vector<at::Tensor>& in, const void* shown,
      const std::function<void(const std::vector<const void*>&)>& take) {
    has_exchanged_ = true;
    follow(stream_, current_stream(device_));  // NCCL's own wait, which is never missing
    if (broken().is_reached_by(device_.index())) {
      meeting_->fail();
    }
    issue(stream_, name, {in, out},
          [meeting = meeting_, rank = getRank(), take, shown, keep = in, kept = out] {
            std::vector<const void*> all;
            if (meeting->show(rank, shown, all)) {
              take(all);
              meeting->leave();
            }
          });
    return c10::make_intrusive<FakeWork>(record(stream_), device_, meeting_);
  }

  std::shared_ptr<Meeting> meeting_;
  c10::Device device_;
  c10::Stream stream_;
  bool has_exchanged_ = false;
  bool is_shut_down_ = false;
};

}  // namespace

std::vector<c10::intrusive_ptr<c10d::Backend>> make_fake_nccl(
    const std::vector<c10::Device>& devices) {
  const auto size = static_cast<int>(devices.size());
  auto meeting = std::make_shared<Meeting>(size);
  std::vector<c10::intrusive_ptr<c10d::Backend>> groups;
  for (int rank = 0; rank < size; ++rank) {
    groups.push_back(c10::make_intrusive<FakeNccl>(meeting, rank, size,
                                                   devices[static_cast<std::size_t>(rank)]));
  }
  return groups;
}

void break_network(int rank, int exchange) {
  broken().at_connect = exchange == 0;
  broken().exchanges_left = exchange;
  broken().rank = rank;
}

std::string last_nccl_error(int rank) {
  return std::string("ncclSystemError: System call failed or device error.\nLast error:\n") +
         (rank != broken().rank ? kClosed
          : broken().at_connect ? kRefused
                                : kRetries) +
         "\n";
}

}  // namespace sherd::fake
