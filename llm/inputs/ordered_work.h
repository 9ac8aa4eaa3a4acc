#pragma once
// Work on all cores whose results come in the order in which it was given.

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace llm::inputs {

/// Threads that take pieces of work from a queue.
class WorkThreads {
 public:
  explicit WorkThreads(std::size_t threads);
  WorkThreads(const WorkThreads&) = delete;
  WorkThreads& operator=(const WorkThreads&) = delete;
  /// Waits for work that has begun, and drops the rest.
  ~WorkThreads();
  void give(std::function<void()> work);

 private:
  void take();

  std::mutex mutex_;  // over the next three
  std::condition_variable changed_;
  std::deque<std::function<void()>> queue_;
  bool ends_ = false;
  std::vector<std::thread> threads_;
};

/// A bounded queue of work; one thread gives work and takes results.
template <class Result>
class OrderedWork {
 public:
  OrderedWork(std::size_t threads, std::size_t most) : most_(most), threads_(threads) {}

  [[nodiscard]] bool is_full() const { return results_.size() >= most_; }
  [[nodiscard]] bool is_empty() const { return results_.empty(); }
  void give(std::function<Result()> work) {
    auto task = std::make_shared<std::packaged_task<Result()>>(std::move(work));
    results_.push_back(task->get_future());
    threads_.give([task] { (*task)(); });
  }
  /// Blocks until the oldest work is done. Throws what it throws.
  [[nodiscard]] Result take() {
    std::future<Result> oldest = std::move(results_.front());
    results_.pop_front();
    return oldest.get();
  }

 private:
  std::size_t most_;
  std::deque<std::future<Result>> results_;
  WorkThreads threads_;
};

}  // namespace llm::inputs
