#pragma once
// A back end from outside the library: ranks are threads that hand each other addresses. What a
// caller writes who brings an exchange of his own (docs/design/communicators.md).

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "sherd/communicator.h"
#include "sherd/error.h"
#include "sherd/world.h"

namespace sherd::test {

/// Where the ranks of one group meet: at each meeting everyone leaves a letter and reads all.
class MailboxTable {
 public:
  struct Letter {
    const void* data = nullptr;
    BufferedCommunicator::Identity identity = {};
  };
  MailboxTable(int size, std::chrono::milliseconds timeout) : size_(size), timeout_(timeout) {}
  [[nodiscard]] int size() const { return size_; }

  std::vector<Letter> meet(int64_t number, int rank, const Letter& letter) {
    std::unique_lock lock(mutex_);
    auto& [letters, came] = meetings_[number];
    letters.resize(static_cast<size_t>(size_));
    letters[static_cast<size_t>(rank)] = letter;
    ++came;
    changed_.notify_all();
    if (!changed_.wait_for(lock, timeout_, [&] { return came == size_; })) {
      throw Error(ExitCode::Hang, "a letter is missing");
    }
    return letters;
  }

 private:
  int size_;
  std::chrono::milliseconds timeout_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<int64_t, std::pair<std::vector<Letter>, int>> meetings_;
};

class MailboxCommunicator final : public BufferedCommunicator {
 public:
  MailboxCommunicator(std::shared_ptr<MailboxTable> table, int rank)
      : table_(std::move(table)), rank_(rank) {}
  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int world_size() const override { return table_->size(); }
  [[nodiscard]] bool gathers_in_place() const override { return false; }

 private:
  void* start_gather(Segment segment, void* slot, const GatherEvents& /*after*/) override {
    return slots_[segment] = slot;
  }

  void finish_gather(Segment segment) override {
    copy_from_all({travelling_shard(segment)}, 0, piece_bytes(segment, spec(segment).dtype),
                  slots_[segment]);
  }

  void start_exchange(Exchange& /*exchange*/) override {}

  void finish_exchange(Exchange& exchange) override {
    const int64_t bytes = piece_bytes(exchange.segment, exchange.dtype);
    check_identities(exchange, copy_from_all({exchange.gradients, exchange.identity}, bytes * rank_,
                                             bytes, exchange.received));
    std::vector<const void*> pieces;
    for (int member = 0; member < world_size(); ++member) {
      pieces.push_back(static_cast<const char*>(exchange.received) + bytes * member);
    }
    add_piece(exchange, pieces, 0, spec(exchange.segment).shard_numel);
  }

  [[nodiscard]] int64_t receive_bytes(const SegmentSpec& spec,
                                      c10::ScalarType dtype) const override {
    return spec.shard_numel * static_cast<int64_t>(c10::elementSize(dtype)) * world_size();
  }

  void gather_numbers(std::span<const double> mine, std::span<double> all) override {
    copy_from_all({mine.data()}, 0, static_cast<int64_t>(mine.size_bytes()), all.data());
  }

  [[nodiscard]] int64_t piece_bytes(Segment segment, c10::ScalarType dtype) const {
    return spec(segment).shard_numel * static_cast<int64_t>(c10::elementSize(dtype));
  }

  // Copies `bytes` at `offset` of each rank's letter, side by side, and waits until all have.
  std::vector<Identity> copy_from_all(const MailboxTable::Letter& mine, int64_t offset,
                                      int64_t bytes, void* to) {
    std::vector<Identity> identities;
    auto* out = static_cast<char*>(to);
    for (const MailboxTable::Letter& letter : table_->meet(next_++, rank_, mine)) {
      std::memcpy(out, static_cast<const char*>(letter.data) + offset, static_cast<size_t>(bytes));
      out += bytes;
      identities.push_back(letter.identity);
    }
    table_->meet(next_++, rank_, {});
    return identities;
  }

  std::shared_ptr<MailboxTable> table_;
  int rank_;
  int64_t next_ = 0;
  std::map<Segment, void*> slots_;
};

/// What the ranks share: a table for each communicator.
struct MailboxOffice {
  int size = 1;
  std::chrono::milliseconds timeout{0};
  std::mutex mutex = {};
  std::map<std::pair<int, int>, std::shared_ptr<MailboxTable>> tables = {};

  std::shared_ptr<MailboxTable> table(int number, const RankGroup& group) {
    const std::lock_guard lock(mutex);
    auto& found = tables[{number, group.first}];
    if (found == nullptr) {
      found = std::make_shared<MailboxTable>(group.size, timeout);
    }
    return found;
  }
};

/// Gives no texts and no broadcast of its own.
class MailboxBackend final : public Backend {
 public:
  MailboxBackend(std::shared_ptr<MailboxOffice> office, int rank)
      : office_(std::move(office)),
        rank_(rank),
        control_(office_->table(0, {0, 1, office_->size}), rank) {}
  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int size() const override { return office_->size; }
  [[nodiscard]] std::unique_ptr<Communicator> make_communicator(const RankGroup& group) override {
    return std::make_unique<MailboxCommunicator>(office_->table(++communicators_, group),
                                                 group.index_of(rank_));
  }
  [[nodiscard]] Communicator& control() override { return control_; }

 private:
  std::shared_ptr<MailboxOffice> office_;
  int rank_;
  MailboxCommunicator control_;
  int communicators_ = 0;
};

/// A world over mailboxes for the threads of another.
inline World mailbox_world(World world) {
  using Office = std::shared_ptr<MailboxOffice>;
  Office mine;
  if (world.rank() == 0) {
    mine = std::make_shared<MailboxOffice>();
    mine->size = world.size();
    mine->timeout = std::chrono::seconds(60);
  }
  Office* of_first = &mine;
  world.broadcast(&of_first, sizeof(of_first), 0);
  const Office office = *of_first;
  world.barrier();  // the first rank's own lives until all have theirs
  return World::over(std::make_shared<MailboxBackend>(office, world.rank()));
}

}  // namespace sherd::test
