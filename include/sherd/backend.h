#pragma once
// What a World is made over: the ranks, and a way from each to the others. For those who bring a
// way of their own.

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sherd/communicator.h"

namespace sherd {

/// Ranks first, first + stride, …: a row or a column of a mesh.
struct RankGroup {
  int first = 0;   ///< rank of the world
  int stride = 1;  ///< between neighbours
  int size = 1;    ///< ranks in the group
  /// Position of a rank of the world in the group.
  [[nodiscard]] int index_of(int rank) const { return (rank - first) / stride; }
  /// The rank of the world at a position of the group.
  [[nodiscard]] int rank_at(int index) const { return first + index * stride; }
  /// How many ranks each host has of the group, where hosts have `local_size` ranks of the world
  /// one behind the other: 1 where they have not as many each.
  [[nodiscard]] int ranks_of_a_host(int local_size) const {
    const auto host_of = [&](int index) { return rank_at(index) / local_size; };
    int block = 1;
    while (block < size && host_of(block) == host_of(0)) {
      ++block;
    }
    for (int index = 1; index < size; ++index) {
      if ((host_of(index) == host_of(index - 1)) != (index % block != 0)) {
        return 1;
      }
    }
    return size % block == 0 ? block : 1;
  }
};

/// A collective that a rank waits in.
struct Wait {
  std::string what;                             ///< for people: "all-gather of unit 'block3'"
  std::chrono::steady_clock::time_point since;  ///< when it began to wait
};

/// One rank's end of the ranks that train together. World::over() makes a World of it. Called from
/// one thread a rank at a time, but for waiting(). PyTorch: a backend of torch.distributed,
/// registered with `Backend.register_backend`.
class Backend {
 public:
  Backend() = default;
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;
  virtual ~Backend() = default;

  /// Which of the ranks this is, from 0.
  [[nodiscard]] virtual int rank() const = 0;
  /// How many ranks there are.
  [[nodiscard]] virtual int size() const = 0;
  /// Position among the ranks of this host.
  [[nodiscard]] virtual int local_rank() const { return rank(); }
  /// Ranks of this host.
  [[nodiscard]] virtual int local_size() const { return size(); }
  /// Where models live and are computed.
  [[nodiscard]] virtual c10::Device device() const { return c10::Device(c10::kCPU); }
  /// Its kind; of ranks that are not there, the kind that they imitate.
  [[nodiscard]] virtual c10::DeviceType device_type() const { return device().type(); }
  /// What this rank waits for, if anything. Any thread may ask, also while another waits.
  [[nodiscard]] virtual std::optional<Wait> waiting() const { return std::nullopt; }
  /// As World::report_progress(); `limit` as of WorkPhase, 0 outside a phase. Back ends whose waits
  /// do not look at progress do nothing.
  virtual void report_progress(const std::string& /*what*/, std::chrono::milliseconds /*limit*/) {}

  /// A communicator over the group that this rank is in, for one model: attach() is called on it.
  /// Collective over the whole world, also where groups differ: rank r passes its own. Groups of
  /// one rank occur.
  [[nodiscard]] virtual std::unique_ptr<Communicator> make_communicator(const RankGroup& group) = 0;
  /// A communicator over all ranks for all_reduce() and barrier() outside any model, without
  /// attach(). It lives as long as the back end.
  [[nodiscard]] virtual Communicator& control() = 0;

  /// Each rank's text, by rank. Collective. Made of control()'s all_reduce() where a back end has
  /// nothing better.
  [[nodiscard]] virtual std::vector<std::string> all_gather(const std::string& text);
  /// Copies `bytes` > 0 bytes of `root`, one of at least two ranks, to all. Collective. As above.
  virtual void broadcast(void* data, int64_t bytes, int root);
  /// Copies `bytes` > 0 bytes from `data` of rank `from` to `data` of rank `to`, two different
  /// ranks. All ranks call it; a back end may let the others return at once. By default a
  /// broadcast(), which the others receive into memory that is freed at once.
  virtual void send(void* data, int64_t bytes, int from, int to);
};

}  // namespace sherd
