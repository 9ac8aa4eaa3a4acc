#include "launch/background_writer.h"

#include <condition_variable>
#include <mutex>
#include <utility>

#include "files/quiet_thread.h"
#include "launch/pipes.h"

namespace sherd::launch {

struct BackgroundWriter::State {
  explicit State(int descriptor) : fd(descriptor) {}
  const int fd;
  std::mutex mutex;
  std::condition_variable changed;
  std::string waiting;
  std::size_t writing_bytes = 0;  ///< of the text that the thread is at
  bool closed = false;
};

BackgroundWriter::BackgroundWriter(int fd) : state_(std::make_shared<State>(fd)) {
  files::start_quiet_thread([state = state_] { write_texts(state); }).detach();
}

BackgroundWriter::~BackgroundWriter() {
  const std::lock_guard lock(state_->mutex);
  state_->closed = true;
  state_->changed.notify_all();
}

void BackgroundWriter::push(std::string text) {
  const std::lock_guard lock(state_->mutex);
  state_->waiting += std::move(text);
  state_->changed.notify_all();
}

std::size_t BackgroundWriter::backlog_bytes() const {
  const std::lock_guard lock(state_->mutex);
  return state_->waiting.size() + state_->writing_bytes;
}

void BackgroundWriter::drain(std::chrono::milliseconds limit) {
  std::unique_lock lock(state_->mutex);
  state_->changed.wait_for(lock, limit,
                           [&] { return state_->waiting.empty() && state_->writing_bytes == 0; });
}

void BackgroundWriter::write_texts(const std::shared_ptr<State>& state) {
  std::unique_lock lock(state->mutex);
  for (;;) {
    state->changed.wait(lock, [&] { return state->closed || !state->waiting.empty(); });
    if (state->closed) {
      return;
    }
    const std::string text = std::exchange(state->waiting, "");
    state->writing_bytes = text.size();
    lock.unlock();
    write_all(state->fd, text);  // returns at once where nobody reads any more
    lock.lock();
    state->writing_bytes = 0;
    state->changed.notify_all();
  }
}

}  // namespace sherd::launch
