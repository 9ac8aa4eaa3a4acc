#include <cstring>
#include <map>
#include <mutex>
#include <utility>

#include "comm/in_process.h"
#include "comm/local.h"
#include "comm/progress_board.h"
#include "rendezvous/backends.h"
#include "sherd/error.h"

namespace sherd::detail {

namespace {

// Between threads.
class ThreadBoard final : public ProgressBoard {
 public:
  explicit ThreadBoard(int size) : reports_(static_cast<size_t>(size)) {}
  void put(int rank, const WorkReport& report) override {
    const std::lock_guard lock(mutex_);
    reports_[static_cast<size_t>(rank)] = report;
  }
  [[nodiscard]] std::vector<WorkReport> reports() override {
    const std::lock_guard lock(mutex_);
    return reports_;
  }

 private:
  std::mutex mutex_;
  std::vector<WorkReport> reports_;
};

// What the ranks share: the hub of each communicator in the order in which they are made, and a
// place for texts.
struct Shared {
  Shared(int world_size, std::chrono::milliseconds wait)
      : size(world_size),
        timeout(wait),
        board(std::make_shared<ThreadBoard>(size)),
        texts(static_cast<size_t>(size)) {}

  // Ranks make their communicators in the same order; groups of one number differ in their first
  // rank.
  std::shared_ptr<InProcessHub> hub(size_t number, const RankGroup& group) {
    const std::lock_guard lock(mutex);
    auto& found = hubs[{number, group.first}];
    if (found == nullptr) {
      found = std::make_shared<InProcessHub>(group, timeout, board);
    }
    return found;
  }

  int size;
  std::chrono::milliseconds timeout;
  std::shared_ptr<ProgressBoard> board;
  std::mutex mutex;
  std::map<std::pair<size_t, int>, std::shared_ptr<InProcessHub>> hubs;
  std::vector<std::string> texts;
  const void* sent = nullptr;  // of the broadcast under way
  int64_t sent_bytes = 0;
};

class InProcessWorld final : public Backend {
 public:
  InProcessWorld(std::shared_ptr<Shared> shared, int rank)
      : shared_(std::move(shared)),
        rank_(rank),
        reports_(shared_->board, rank, shared_->timeout),
        control_(shared_->hub(0, {0, 1, shared_->size}), rank) {}

  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int size() const override { return shared_->size; }
  void report_progress(const std::string& what, std::chrono::milliseconds limit) override {
    reports_.put(what, limit);
  }
  [[nodiscard]] std::unique_ptr<Communicator> make_communicator(const RankGroup& group) override {
    ++communicators_;
    if (group.size == 1) {
      return std::make_unique<LocalCommunicator>();
    }
    return std::make_unique<InProcessCommunicator>(shared_->hub(communicators_, group),
                                                   group.index_of(rank_));
  }
  [[nodiscard]] Communicator& control() override { return control_; }

  [[nodiscard]] std::vector<std::string> all_gather(const std::string& text) override {
    {
      const std::lock_guard lock(shared_->mutex);
      shared_->texts[static_cast<size_t>(rank_)] = text;
    }
    control_.barrier();
    std::vector<std::string> texts;
    {
      const std::lock_guard lock(shared_->mutex);
      texts = shared_->texts;
    }
    control_.barrier();
    return texts;
  }

  void broadcast(void* data, int64_t bytes, int root) override {
    copy_from(root, data, bytes, /*receives=*/rank_ != root, "broadcast");
  }
  void send(void* data, int64_t bytes, int from, int to) override {
    copy_from(from, data, bytes, /*receives=*/rank_ == to, "send");
  }

 private:
  void copy_from(int root, void* data, int64_t bytes, bool receives, const std::string& operation) {
    if (rank_ == root) {
      const std::lock_guard lock(shared_->mutex);
      shared_->sent = data;
      shared_->sent_bytes = bytes;
    }
    meet(operation, root);
    const int64_t sent_bytes = shared_->sent_bytes;  // the root changes it after all have met again
    if (receives && bytes == sent_bytes) {
      std::memcpy(data, shared_->sent, static_cast<size_t>(bytes));
    }
    meet(operation, root);
    if (bytes != sent_bytes) {
      throw Error(ExitCode::RanksDisagree, "[" + operation + "] rank " + std::to_string(root) +
                                               " sends " + std::to_string(sent_bytes) +
                                               " bytes, and rank " + std::to_string(rank_) +
                                               " expects " + std::to_string(bytes) + ".");
    }
  }

  void meet(const std::string& operation, int root) {
    try {
      control_.barrier();
    } catch (const Error& error) {
      throw Error(error.code(),
                  operation + " from rank " + std::to_string(root) + ": " + error.what());
    }
  }

  std::shared_ptr<Shared> shared_;
  int rank_;
  OwnReports reports_;
  InProcessCommunicator control_;
  size_t communicators_ = 0;
};

}  // namespace

std::vector<std::shared_ptr<Backend>> make_in_process_worlds(int size,
                                                             std::chrono::milliseconds timeout) {
  auto shared = std::make_shared<Shared>(size, timeout);
  std::vector<std::shared_ptr<Backend>> worlds;
  for (int rank = 0; rank < size; ++rank) {
    worlds.push_back(std::make_shared<InProcessWorld>(shared, rank));
  }
  return worlds;
}

}  // namespace sherd::detail
