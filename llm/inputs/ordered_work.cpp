#include "llm/inputs/ordered_work.h"

#include <utility>

namespace llm::inputs {

WorkThreads::WorkThreads(std::size_t threads) {
  for (std::size_t i = 0; i < threads; ++i) {
    threads_.emplace_back([this] { take(); });
  }
}

WorkThreads::~WorkThreads() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
    queue_.clear();
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) {
    thread.join();
  }
}

void WorkThreads::give(std::function<void()> work) {
  {
    const std::lock_guard lock(mutex_);
    queue_.push_back(std::move(work));
  }
  changed_.notify_one();
}

void WorkThreads::take() {
  for (;;) {
    std::function<void()> work;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return ends_ || !queue_.empty(); });
      if (ends_) {
        return;
      }
      work = std::move(queue_.front());
      queue_.pop_front();
    }
    work();
  }
}

}  // namespace llm::inputs
