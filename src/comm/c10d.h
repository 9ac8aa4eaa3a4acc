#pragma once
// Ranks that are processes, over c10d process groups (Gloo): the way between hosts.

#include <algorithm>
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "comm/buffers.h"
#include "comm/exchange.h"
#include "launch/pipes.h"
#include "sherd/communicator.h"

namespace sherd::detail {

/// The process groups of one communicator. Two, so that a gather never waits behind a reduction.
struct ProcessGroups {
  c10::intrusive_ptr<c10d::Backend> gather;
  c10::intrusive_ptr<c10d::Backend> reduce;
  FailureNotes notes;
  std::function<std::string()> last_error = {};  ///< of the library, for devices
  std::string carrier = "NCCL";                  ///< name of the library, for devices
};

/// Ends waits for messages of Gloo when no rank makes progress. Gloo's own limit is a fixed time,
/// also while this process is suspended, and closes its connections. So a thread aborts the wait.
class WaitWatch {
 public:
  using Work = c10::intrusive_ptr<c10d::Work>;
  WaitWatch();
  ~WaitWatch() {
    stop_.write_end.close();
    thread_.join();
  }
  WaitWatch(const WaitWatch&) = delete;
  WaitWatch& operator=(const WaitWatch&) = delete;

  /// Waits for all works. Throws the error of a work, or Error(Hang).
  void await(const std::vector<Work>& works, const Patience& patience);

 private:
  void watch();

  std::mutex mutex_;                  // of the next two
  std::optional<Patience> patience_;  // of the current wait
  const std::vector<Work>* works_ = nullptr;
  launch::Pipe stop_;  // closing its write end ends the thread
  std::thread thread_;
};

/// Sends bytes to `peer`, or receives them from it. The memory must stay until the work has ended.
[[nodiscard]] c10::intrusive_ptr<c10d::Work> send_to(c10d::Backend& group, const void* data,
                                                     int64_t bytes, int peer, int tag);
[[nodiscard]] c10::intrusive_ptr<c10d::Work> receive_from(c10d::Backend& group, void* data,
                                                          int64_t bytes, int peer, int tag);

/// All exchanges are messages between two ranks. Each collective but a broadcast begins with
/// identities, so that ranks out of step are named. Gathers go into the slot. Reductions send each
/// rank its shard in the dtype on the wire and sum the received shards in fp32 and rank order:
/// Gloo's reduce-scatter sums in another order and costs an all-reduce. Segments larger than the
/// largest block are exchanged in parts of that size, so that no more than two blocks' gradients
/// are received at a time.
class C10dCommunicator : public BufferedCommunicator {
 public:
  explicit C10dCommunicator(ProcessGroups groups);

  [[nodiscard]] int rank() const override { return groups_.gather->getRank(); }
  [[nodiscard]] int world_size() const override { return groups_.gather->getSize(); }
  [[nodiscard]] std::string transport() const override {
    return "process groups (" + groups_.gather->getBackendName() + ")";
  }
  [[nodiscard]] bool gathers_in_place() const override { return false; }
  [[nodiscard]] bool takes_pieces() const override { return true; }

  /// Returns each rank's bytes, by rank. Collective.
  [[nodiscard]] std::vector<std::string> all_gather_bytes(const std::string& bytes);
  /// Copies `data` of `root` to all. Collective.
  void broadcast_bytes(void* data, int64_t bytes, int root);
  /// Copies `data` of rank `from` to rank `to`. The other ranks return at once.
  void send_bytes(void* data, int64_t bytes, int from, int to);

 protected:
  using Work = c10::intrusive_ptr<c10d::Work>;
  /// The messages of one collective: identities, then contents.
  struct Messages {
    int number = 0;                         ///< of the collective, in its process group
    std::vector<Identity> identities = {};  ///< by rank
    std::vector<Work> introductions = {};   ///< sends and receives of identities
    std::vector<Work> sends = {};
    std::vector<Work> receives = {};
  };
  [[nodiscard]] const ProcessGroups& groups() const { return groups_; }
  /// True after cancel() or an exchange that failed: no further one can succeed.
  [[nodiscard]] bool has_failed() const { return has_failed_; }
  /// Begins the messages of this rank's current collective in the gather group.
  [[nodiscard]] Messages introduce(Segment segment, const std::vector<int>& peers) {
    const int32_t dtype = segment < 0 ? 0 : static_cast<int32_t>(spec(segment).dtype);
    return introduce(*groups_.gather, next_number(next_gather_), {counts_.history, segment, dtype},
                     peers);
  }
  /// Returns the tag of a gather's contents.
  [[nodiscard]] static int tag_of(const Messages& messages, Segment segment) {
    return tag_of(messages.number, 2 * int64_t{segment});
  }
  /// Waits for what others send. Throws Error(RanksDisagree) if a rank is at another collective.
  void finish_receives(Messages& messages, const std::string& what);
  /// Waits for receives or sends, and drops them.
  void await_messages(std::vector<Work>& works) {
    watch_.await(std::exchange(works, {}), groups_.notes.patience());
  }
  /// exchange() with the notes of these groups.
  template <class Fn>
  auto attempt(const std::string& what, Fn&& fn) {
    try {
      return exchange(groups_.notes, what, std::forward<Fn>(fn));
    } catch (const std::exception&) {
      has_failed_ = true;
      throw;
    }
  }
  void gather_numbers(std::span<const double> mine, std::span<double> all) override {
    gather_bytes("all-reduce", mine.data(), static_cast<int64_t>(mine.size_bytes()), all.data());
  }
  [[nodiscard]] int rank_of_world(int member) const override {
    return groups_.notes.group.rank_at(member);
  }
  void forget_exchanges() override;
  void interrupt(const std::string& /*why*/) override { has_failed_ = true; }

 private:
  struct Sent : Exchange {
    int64_t shard_numel = 0;
    int64_t part_numel = 0;  ///< elements of each shard that are exchanged at a time
    int64_t element_bytes = 0;
    int64_t done = 0;        ///< elements of the shard that are summed
    Messages messages = {};  ///< received: the current part
    [[nodiscard]] int64_t next_numel() const { return std::min(part_numel, shard_numel - done); }
  };
  void* start_gather(Segment segment, void* slot, const GatherEvents& after) override;
  void finish_gather(Segment segment) override {
    auto node = gathers_.extract(segment);
    finish(node.mapped(), described(Collective::Operation::Gather, segment));
  }
  [[nodiscard]] std::unique_ptr<Exchange> make_exchange() override {
    return std::make_unique<Sent>();
  }
  void start_exchange(Exchange& exchange) override;
  void finish_exchange(Exchange& exchange) override;
  // Without blocks a root's gradients come in one part.
  [[nodiscard]] int64_t receive_bytes(const SegmentSpec& spec,
                                      c10::ScalarType dtype) const override {
    return others_parts_bytes(spec, dtype, block_piece_bytes(), world_size());
  }

  [[nodiscard]] static int next_number(int& next, int64_t count = 1);
  [[nodiscard]] static int tag_of(int64_t number, int64_t kind);
  [[nodiscard]] Messages introduce(c10d::Backend& group, int number, const Identity& mine,
                                   const std::vector<int>& peers) const;
  void add_all_gather(Messages& to, const void* mine, int64_t bytes, void* all, int tag) const;
  void gather_bytes(const std::string& what, const void* mine, int64_t bytes, void* all);
  void finish(Messages& messages, const std::string& what) {
    finish_receives(messages, what);
    attempt(what, [&] { await_messages(messages.sends); });
  }
  [[nodiscard]] int tag_of_part(const Sent& sent, int64_t part) const;
  void post_sends(Sent& sent);
  void post_receives(Sent& sent);
  void finish_part(Sent& sent);

  ProcessGroups groups_;
  std::vector<int> peers_;  ///< the other ranks
  std::map<Segment, Messages> gathers_;
  int next_gather_ = 0;  ///< number in the gather group
  int next_reduction_ = 0;
  std::atomic<bool> has_failed_ = false;
  WaitWatch watch_;
};

}  // namespace sherd::detail
