#pragma once
// What the ranks of a process group send to each other: first who they are, then the bytes.

#include <span>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "sherd/buffered_communicator.h"

namespace sherd::detail {

/// Hands out the tags of one process group, in the order of its exchanges.
class MessageTags {
 public:
  /// As many as one exchange needs; returns the first.
  int take(int count);

 private:
  int next_ = 0;
};

/// One exchange of each rank with each other. [Note: Messages of ranks out of step]
/// Gloo ends the process (an exception in a thread of its own) in which a message is longer than
/// the receive it meets, and ranks out of step may send units of different sizes. So identities go
/// first, all of one length, under tags that count; the tags of all other messages follow from the
/// identity's history, so that only those of ranks in step meet. The receiver compares the
/// identities before it waits for the rest.
class C10dMessages {
 public:
  using Identity = BufferedCommunicator::Identity;
  C10dMessages() = default;
  /// Of an exchange whose first tag is `tag`, and of `parts` messages to each rank.
  C10dMessages(c10::intrusive_ptr<c10d::Backend> group, int tag, const Identity& mine);

  /// Tags of an exchange of so many messages to each rank.
  [[nodiscard]] static int tags_of(int parts) { return 1 + parts; }
  /// Sends this rank's identity, and receives the others'.
  void exchange_identities();
  /// Starts to send `bytes` at `data`, the part of this number. They are only read.
  void send(const void* data, int64_t bytes, int peer, int part);
  /// Starts to receive into `data`.
  void receive(void* data, int64_t bytes, int peer, int part);
  /// Waits for the identities of all; by rank.
  [[nodiscard]] std::span<const Identity> identities();
  /// Waits for what was to be received so far.
  void wait_received();
  /// Waits until nothing that was sent is read any more.
  void wait_sent();

 private:
  using Works = std::vector<c10::intrusive_ptr<c10d::Work>>;
  [[nodiscard]] int tag_of_part(int part) const;
  static void wait(Works& works);

  c10::intrusive_ptr<c10d::Backend> group_;
  int tag_ = 0;
  std::vector<Identity> identities_;  ///< by rank
  Works received_identities_;
  Works received_;
  Works sent_;
};

}  // namespace sherd::detail
