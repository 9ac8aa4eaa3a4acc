#include "comm/connect_together.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/DeviceGuard.h>

#include "comm/exchange.h"
#include "comm/rank_place.h"
#include "sherd/backend.h"
#include "sherd/error.h"
#include "storage/own_work.h"

namespace sherd::detail {

namespace {

std::atomic<int>& threads_in_nccl() {
  static std::atomic<int> count = 0;
  return count;
}

struct InNccl {
  InNccl() { ++threads_in_nccl(); }
  ~InNccl() { --threads_in_nccl(); }
  InNccl(const InNccl&) = delete;
  InNccl& operator=(const InNccl&) = delete;
};

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr const char* kFailed = "connecting/failed";  // what the first rank that failed says
constexpr const char* kKnow = "connecting/know";      // how many ranks have read it
constexpr milliseconds kLongestPause{200};

}  // namespace

void connect_groups(const ProcessGroups& groups, c10::Device device) {
  const c10::DeviceGuard guard(device);
  for (const auto& group : {groups.gather, groups.reduce}) {
    group->eagerConnectSingleDevice(device);
    const auto bytes = c10::TensorOptions().dtype(at::kByte).device(device);
    at::Tensor mine = at::zeros({group->getSize()}, bytes);
    at::Tensor all = at::empty({group->getSize()}, bytes);
    std::vector<int64_t> equal_splits;
    group->alltoall_base(all, mine, equal_splits, equal_splits)->wait();
    at::Tensor one = mine.narrow(0, 0, 1);
    group->_allgather_base(all, one)->wait();
    static_cast<void>(all.cpu());  // the host waits
  }
}

void Connecting::on_all_ranks(std::function<void()> connect) {
  const std::string counter = "connecting/" + std::to_string(times_++);
  std::packaged_task<void()> task(connect ? std::move(connect) : [] {});
  std::future<void> connected = task.get_future();
  std::thread thread([counted = std::make_unique<InNccl>(), task = std::move(task)]() mutable {
    task();
    task = {};  // with what it owns
    counted.reset();
  });
  try {
    if (own_ == nullptr) {
      own_ = store_->clone();
      rank_.limit_connections();
    }
    await(std::move(connected), counter);
  } catch (const Error&) {
    thread.detach();  // it may be in NCCL
    throw;
  } catch (const std::exception& error) {  // of the store
    thread.detach();
    throw Error(ExitCode::PeerLost,
                "[World] rank 0, in whose store ranks agree while GPUs connect, is gone for rank " +
                    std::to_string(rank_.rank) + ": " + error.what() +
                    ". Its own message says why.");
  }
  thread.join();
}

void Connecting::await(std::future<void> connected, const std::string& counter) const {
  const auto deadline = Clock::now() + timeout_;
  bool has_connected = false;
  for (milliseconds pause(1);; pause = std::min(2 * pause, kLongestPause)) {
    if (has_connected) {
      std::this_thread::sleep_for(pause);
    } else if (connected.wait_for(pause) == std::future_status::ready) {
      try {
        connected.get();
      } catch (const std::exception& error) {
        fail(message_of(error));
      }
      has_connected = true;
      pause = milliseconds(1);
      own_->add(counter, 1);
    }
    if (own_->check({kFailed})) {
      fail_with_others(own_->get_to_str(kFailed));
    }
    if (has_connected && own_->add(counter, 0) == rank_.size) {
      return;
    }
    if (Clock::now() > deadline) {
      fail(has_connected
               ? "others do not connect in time"
               : "it does not connect within " + std::to_string(timeout_.count() / 1000) + " s");
    }
  }
}

void Connecting::fail(const std::string& why) const {
  const std::string reason = nccl_reason(why);
  const std::string text = "[World] the ranks' GPUs cannot be connected over NCCL. On rank " +
                           std::to_string(rank_.rank) + " (host " + host_name() + ") " +
                           (reason.empty() ? "that fails: " + why : "NCCL says: " + reason) + ". " +
                           nccl_interfaces() + " The ranks met over " + rank_.met_over +
                           ": try NCCL_SOCKET_IFNAME with that interface. " + kNcclTellsMore;
  // What fails after the first fails because of it.
  fail_with_others(own_->compareSet(kFailed, std::string(), text));
}

void Connecting::fail_with_others(const std::string& told) const {
  wait_until_all_know(*own_, kKnow, rank_.rank, rank_.size);
  throw Error(ExitCode::Unavailable, told);
}

}  // namespace sherd::detail

namespace sherd {

bool thread_connects_in_nccl() {
  return detail::threads_in_nccl() > 0;
}

}  // namespace sherd
