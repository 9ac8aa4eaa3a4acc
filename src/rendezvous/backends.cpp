// What a Backend does by default; a world of one rank, a part of a world, ranks that are threads.

#include "rendezvous/backends.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <span>
#include <utility>

#include "comm/communicators.h"
#include "comm/local.h"
#include "comm/progress_board.h"
#include "comm/rank_place.h"
#include "sherd/error.h"

namespace sherd {

namespace {

// Whole numbers of 48 bits are doubles, and so are their sums with 0.
constexpr size_t kBytesInANumber = 6;
constexpr size_t kNumbersAtATime = 4096;

std::vector<double> packed(std::span<const char> bytes) {
  std::vector<double> numbers;
  for (size_t first = 0; first < bytes.size(); first += kBytesInANumber) {
    uint64_t number = 0;
    std::memcpy(&number, bytes.data() + first, std::min(kBytesInANumber, bytes.size() - first));
    numbers.push_back(static_cast<double>(number));
  }
  return numbers;
}

void unpack(std::span<const double> numbers, std::span<char> bytes) {
  for (size_t i = 0; i < numbers.size(); ++i) {
    const auto number = static_cast<uint64_t>(numbers[i]);
    const size_t first = i * kBytesInANumber;
    std::memcpy(bytes.data() + first, &number, std::min(kBytesInANumber, bytes.size() - first));
  }
}

size_t numbers_of(size_t bytes) {
  return (bytes + kBytesInANumber - 1) / kBytesInANumber;
}

}  // namespace

// Texts and bytes travel as sums of numbers: slow, and all that a back end must have.
std::vector<std::string> Backend::all_gather(const std::string& text) {
  const auto ranks = static_cast<size_t>(size());
  const auto mine = static_cast<size_t>(rank());
  std::vector<double> lengths(ranks, 0.0);
  lengths[mine] = static_cast<double>(text.size());
  control().all_reduce(lengths, ReduceOp::Sum);
  std::vector<size_t> begins(ranks + 1, 0);
  for (size_t r = 0; r < ranks; ++r) {
    begins[r + 1] = begins[r] + numbers_of(static_cast<size_t>(lengths[r]));
  }
  std::vector<double> numbers(begins.back(), 0.0);
  const std::vector<double> own = packed(text);
  std::copy(own.begin(), own.end(), numbers.begin() + static_cast<std::ptrdiff_t>(begins[mine]));
  control().all_reduce(numbers, ReduceOp::Sum);
  std::vector<std::string> texts;
  for (size_t r = 0; r < ranks; ++r) {
    texts.emplace_back(static_cast<size_t>(lengths[r]), '\0');
    unpack(std::span(numbers).subspan(begins[r], begins[r + 1] - begins[r]), texts.back());
  }
  return texts;
}

void Backend::broadcast(void* data, int64_t bytes, int root) {
  constexpr size_t kBytesAtATime = kNumbersAtATime * kBytesInANumber;
  std::span<char> left(static_cast<char*>(data), static_cast<size_t>(bytes));
  while (!left.empty()) {
    const std::span<char> now = left.first(std::min(left.size(), kBytesAtATime));
    std::vector<double> numbers =
        rank() == root ? packed(now) : std::vector<double>(numbers_of(now.size()), 0.0);
    control().all_reduce(numbers, ReduceOp::Sum);
    unpack(numbers, now);
    left = left.subspan(now.size());
  }
}

void Backend::send(void* data, int64_t bytes, int from, int to) {
  const bool takes_part = rank() == from || rank() == to;
  std::vector<char> unused(takes_part ? 0 : static_cast<size_t>(bytes));
  broadcast(takes_part ? data : unused.data(), bytes, from);
}

namespace detail {

namespace {

class LocalBackend final : public Backend {
 public:
  explicit LocalBackend(c10::Device device) : device_(device) {}
  [[nodiscard]] c10::Device device() const override { return device_; }
  [[nodiscard]] int rank() const override { return 0; }
  [[nodiscard]] int size() const override { return 1; }
  [[nodiscard]] std::unique_ptr<Communicator> make_communicator(
      const RankGroup& /*group*/) override {
    return std::make_unique<LocalCommunicator>();
  }
  [[nodiscard]] Communicator& control() override { return control_; }
  [[nodiscard]] std::vector<std::string> all_gather(const std::string& text) override {
    return {text};
  }

 private:
  c10::Device device_;
  LocalCommunicator control_;
};

// Groups of the part are groups of the whole: everything is done by the back end of the whole.
class SubsetWorld final : public Backend {
 public:
  SubsetWorld(std::shared_ptr<Backend> whole, const RankGroup& ranks)
      : whole_(std::move(whole)),
        ranks_(ranks),
        rank_(ranks.index_of(whole_->rank())),
        control_(whole_->make_communicator(ranks)) {
    find_local_ranks();
  }

  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int size() const override { return ranks_.size; }
  [[nodiscard]] int local_rank() const override { return local_rank_; }
  [[nodiscard]] int local_size() const override { return local_size_; }
  [[nodiscard]] c10::Device device() const override { return whole_->device(); }
  [[nodiscard]] c10::DeviceType device_type() const override { return whole_->device_type(); }
  [[nodiscard]] std::optional<Wait> waiting() const override { return whole_->waiting(); }
  void report_progress(const std::string& what, std::chrono::milliseconds limit) override {
    whole_->report_progress(what, limit);
  }
  [[nodiscard]] std::unique_ptr<Communicator> make_communicator(const RankGroup& group) override {
    return whole_->make_communicator(
        {ranks_.rank_at(group.first), ranks_.stride * group.stride, group.size});
  }
  [[nodiscard]] Communicator& control() override { return *control_; }

 private:
  void find_local_ranks() {
    const RankPlace mine = RankPlace::of_this_process();
    const std::vector<std::string> places = whole_->all_gather(mine.to_text());
    local_size_ = 0;
    for (int member = 0; member < ranks_.size; ++member) {
      const auto& text = places[static_cast<size_t>(ranks_.rank_at(member))];
      if (member == rank_ || RankPlace::from_text(text).shares_host_with(mine)) {
        local_rank_ = member == rank_ ? local_size_ : local_rank_;
        ++local_size_;
      }
    }
  }

  std::shared_ptr<Backend> whole_;
  RankGroup ranks_;  ///< of the whole
  int rank_;
  int local_rank_ = 0;
  int local_size_ = 1;
  std::unique_ptr<Communicator> control_;
};

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

// What the ranks share.
struct Shared {
  Shared(int world_size, std::chrono::milliseconds wait)
      : size(world_size), timeout(wait), board(std::make_shared<ThreadBoard>(size)) {}

  // Ranks make their communicators in the same order.
  std::shared_ptr<InProcessHub> hub(size_t number, const RankGroup& group) {
    const std::lock_guard lock(mutex);
    auto& found = hubs[{number, group.first}];
    if (found == nullptr) {
      found = make_in_process_hub(group, timeout, board);
    }
    return found;
  }

  int size;
  std::chrono::milliseconds timeout;
  std::shared_ptr<ProgressBoard> board;
  std::mutex mutex;
  std::map<std::pair<size_t, int>, std::shared_ptr<InProcessHub>> hubs;
  const void* sent = nullptr;  // of the broadcast under way
  int64_t sent_bytes = 0;
};

class InProcessWorld final : public Backend {
 public:
  InProcessWorld(std::shared_ptr<Shared> shared, int rank)
      : shared_(std::move(shared)),
        rank_(rank),
        reports_(shared_->board, rank, shared_->timeout),
        control_(make_in_process_communicator(shared_->hub(0, {0, 1, shared_->size}), rank)) {}

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
    return make_in_process_communicator(shared_->hub(communicators_, group), group.index_of(rank_));
  }
  [[nodiscard]] Communicator& control() override { return *control_; }

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
      control_->barrier();
    } catch (const Error& error) {
      throw Error(error.code(),
                  operation + " from rank " + std::to_string(root) + ": " + error.what());
    }
  }

  std::shared_ptr<Shared> shared_;
  int rank_;
  OwnReports reports_;
  std::unique_ptr<Communicator> control_;
  size_t communicators_ = 0;
};

bool is_group_of(const RankGroup& ranks, const Backend& whole) {
  const int offset = whole.rank() - ranks.first;
  return ranks.first >= 0 && ranks.stride >= 1 && ranks.size >= 1 && ranks.size <= whole.size() &&
         ranks.stride <= whole.size() &&
         ranks.first + static_cast<int64_t>(ranks.size - 1) * ranks.stride < whole.size() &&
         offset >= 0 && offset % ranks.stride == 0 && offset / ranks.stride < ranks.size;
}

}  // namespace

std::shared_ptr<Backend> make_local_world(c10::Device device) {
  return std::make_shared<LocalBackend>(device);
}

std::shared_ptr<Backend> make_subset_world(std::shared_ptr<Backend> whole, const RankGroup& ranks) {
  if (!is_group_of(ranks, *whole)) {
    throw Error(ExitCode::Usage, "[World::subset] rank " + std::to_string(whole->rank()) + " of " +
                                     std::to_string(whole->size()) +
                                     " is not in a group of the world with first rank " +
                                     std::to_string(ranks.first) + ", stride " +
                                     std::to_string(ranks.stride) + " and size " +
                                     std::to_string(ranks.size) +
                                     ": each rank passes the group that it is in.");
  }
  return std::make_shared<SubsetWorld>(std::move(whole), ranks);
}

std::vector<std::shared_ptr<Backend>> make_in_process_worlds(int size,
                                                             std::chrono::milliseconds timeout) {
  auto shared = std::make_shared<Shared>(size, timeout);
  std::vector<std::shared_ptr<Backend>> worlds;
  for (int rank = 0; rank < size; ++rank) {
    worlds.push_back(std::make_shared<InProcessWorld>(shared, rank));
  }
  return worlds;
}

}  // namespace detail

}  // namespace sherd
