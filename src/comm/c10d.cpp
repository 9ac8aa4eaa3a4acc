#include "comm/c10d.h"

#include <chrono>
#include <cstring>

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/util/ScopeExit.h>
#include <poll.h>

#include "files/quiet_thread.h"
#include "launch/rank_environment.h"
#include "sherd/error.h"

namespace sherd::detail {

namespace {

constexpr int kBetweenAborts_ms = 100;
// Tags of identities are the numbers of collectives, which repeat long after the messages are
// received. Tags of contents follow them, then those of single messages. The number of kinds is
// odd, since lengths are often multiples of a power of two.
constexpr int kTags = 1 << 29;
constexpr int64_t kKinds = (1 << 13) - 1;  // of contents with the same number

at::Tensor bytes_at(void* data, int64_t bytes) {
  return at::from_blob(data, {bytes}, at::kByte);
}

// The kind of contents that are no segment's: odd.
int64_t kind_of(int64_t bytes) {
  return 2 * bytes + 1;
}

}  // namespace

c10::intrusive_ptr<c10d::Work> send_to(c10d::Backend& group, const void* data, int64_t bytes,
                                       int peer, int tag) {
  std::vector<at::Tensor> tensors{bytes_at(const_cast<void*>(data), bytes)};
  return group.send(tensors, peer, tag);
}

c10::intrusive_ptr<c10d::Work> receive_from(c10d::Backend& group, void* data, int64_t bytes,
                                            int peer, int tag) {
  std::vector<at::Tensor> tensors{bytes_at(data, bytes)};
  return group.recv(tensors, peer, tag);
}

WaitWatch::WaitWatch() : stop_(launch::make_pipe()) {
  thread_ = files::start_quiet_thread([this] { watch(); });
}

void WaitWatch::watch() {
  pollfd stopped{stop_.read_end.get(), POLLIN, 0};
  while (::poll(&stopped, 1, kBetweenAborts_ms) <= 0) {
    const std::lock_guard lock(mutex_);
    if (patience_ && patience_->is_over()) {
      for (const Work& work : *works_) {
        work->abort();
      }
    }
  }
}

void WaitWatch::await(const std::vector<Work>& works, const Patience& patience) {
  {
    const std::lock_guard lock(mutex_);
    patience_ = patience;
    works_ = &works;
  }
  const auto end = c10::make_scope_exit([this] {
    const std::lock_guard lock(mutex_);
    patience_.reset();
  });
  for (const Work& work : works) {
    // Without a limit it would end after the timeout with which its group was connected.
    if (!work->wait(launch::kLongestTimeout)) {
      throw Error(ExitCode::Hang, "no rank has made progress for the timeout");
    }
  }
}

C10dCommunicator::C10dCommunicator(ProcessGroups groups) : groups_(std::move(groups)) {
  for (int peer = 0; peer < groups_.gather->getSize(); ++peer) {
    if (peer != groups_.gather->getRank()) {
      peers_.push_back(peer);
    }
  }
}

int C10dCommunicator::next_number(int& next, int64_t count) {
  return std::exchange(next, static_cast<int>((next + count) % kTags));
}

// Gloo ends the process where a message is longer than the memory it is received in. So contents of
// different kinds have different tags, and identities name the ranks that are out of step.
int C10dCommunicator::tag_of(int64_t number, int64_t kind) {
  return kTags + static_cast<int>((number * kKinds + kind % kKinds) % kTags);
}

C10dCommunicator::Messages C10dCommunicator::introduce(c10d::Backend& group, int number,
                                                       const Identity& mine,
                                                       const std::vector<int>& peers) const {
  Messages messages{number, std::vector<Identity>(static_cast<size_t>(world_size()), mine)};
  const auto at = [&](int member) { return &messages.identities[static_cast<size_t>(member)]; };
  for (const int peer : peers) {
    messages.introductions.push_back(send_to(group, at(rank()), sizeof(Identity), peer, number));
    messages.introductions.push_back(receive_from(group, at(peer), sizeof(Identity), peer, number));
  }
  return messages;
}

void C10dCommunicator::finish_receives(Messages& messages, const std::string& what) {
  attempt(what, [&] { await_messages(messages.introductions); });
  const std::uint64_t own = messages.identities[static_cast<size_t>(rank())].history;
  for (int member = 0; member < world_size(); ++member) {
    if (messages.identities[static_cast<size_t>(member)].history != own) {
      has_failed_ = true;
      throw_out_of_step(what, rank_of_world(rank()), rank_of_world(member));
    }
  }
  attempt(what, [&] { await_messages(messages.receives); });
}

// `all`: `bytes` of each rank, by rank.
void C10dCommunicator::add_all_gather(Messages& to, const void* mine, int64_t bytes, void* all,
                                      int tag) const {
  const auto place = [&](int member) { return static_cast<char*>(all) + member * bytes; };
  for (const int peer : peers_) {
    to.sends.push_back(send_to(*groups_.gather, mine, bytes, peer, tag));
    to.receives.push_back(receive_from(*groups_.gather, place(peer), bytes, peer, tag));
  }
  std::memcpy(place(rank()), mine, static_cast<size_t>(bytes));
}

void C10dCommunicator::gather_bytes(const std::string& what, const void* mine, int64_t bytes,
                                    void* all) {
  Messages messages = attempt(what, [&] {
    Messages begun = introduce(-1, peers_);
    add_all_gather(begun, mine, bytes, all, tag_of(begun.number, kind_of(bytes)));
    return begun;
  });
  finish(messages, what);
}

void* C10dCommunicator::start_gather(Segment segment, void* slot, const GatherEvents& /*after*/) {
  if (gathers_.contains(segment)) {
    finish_gather(segment);  // it was dropped
  }
  gathers_[segment] = attempt(described(Collective::Operation::Gather, segment), [&] {
    Messages begun = introduce(segment, peers_);
    add_all_gather(begun, travelling_shard(segment), segment_bytes(spec(segment), 1), slot,
                   tag_of(begun, segment));
    return begun;
  });
  return slot;
}

void C10dCommunicator::forget_exchanges() {
  for (auto& [segment, messages] : std::exchange(gathers_, {})) {
    if (!has_failed_) {
      finish(messages, described(Collective::Operation::Gather, segment));
    }
  }
}

void C10dCommunicator::start_exchange(Exchange& filled) {
  auto& sent = static_cast<Sent&>(filled);
  sent.shard_numel = spec(sent.segment).shard_numel;
  sent.element_bytes = static_cast<int64_t>(c10::elementSize(sent.dtype));
  const int64_t block = block_piece_bytes() / sent.element_bytes;
  sent.part_numel = block == 0 ? sent.shard_numel : std::min(block, sent.shard_numel);
  const int64_t parts = (sent.shard_numel + sent.part_numel - 1) / sent.part_numel;
  const int number = next_number(next_reduction_, parts);
  attempt(described(Collective::Operation::Reduction, sent.segment), [&] {
    sent.messages = introduce(*groups_.reduce, number, sent.identity, peers_);
    post_sends(sent);
    post_receives(sent);
  });
}

int C10dCommunicator::tag_of_part(const Sent& sent, int64_t part) const {
  return tag_of(sent.messages.number + part,
                2 * int64_t{sent.segment} + (sent.element_bytes == 4 ? 1 : 0));
}

void C10dCommunicator::post_sends(Sent& sent) {
  int64_t part_number = 0;
  for (int64_t first = 0; first < sent.shard_numel; first += sent.part_numel) {
    const int tag = tag_of_part(sent, part_number++);
    const int64_t numel = std::min(sent.part_numel, sent.shard_numel - first);
    for (const int peer : peers_) {
      const char* part = static_cast<const char*>(sent.gradients) +
                         (peer * sent.shard_numel + first) * sent.element_bytes;
      sent.messages.sends.push_back(
          send_to(*groups_.reduce, part, numel * sent.element_bytes, peer, tag));
    }
  }
}

void C10dCommunicator::post_receives(Sent& sent) {
  const int tag = tag_of_part(sent, sent.done / sent.part_numel);
  auto* place = static_cast<char*>(sent.received);
  for (const int peer : peers_) {
    sent.messages.receives.push_back(
        receive_from(*groups_.reduce, place, sent.next_numel() * sent.element_bytes, peer, tag));
    place += sent.part_numel * sent.element_bytes;
  }
}

void C10dCommunicator::finish_part(Sent& sent) {
  const std::string what = described(Collective::Operation::Reduction, sent.segment);
  attempt(what, [&] { await_messages(sent.messages.introductions); });
  try {
    check_identities(sent, sent.messages.identities);  // again where the first time has thrown
  } catch (const Error&) {
    has_failed_ = true;
    throw;
  }
  attempt(what, [&] { await_messages(sent.messages.receives); });
  std::vector<const void*> sources(
      static_cast<size_t>(world_size()),
      static_cast<const char*>(sent.gradients) +
          (rank() * sent.shard_numel + sent.done) * sent.element_bytes);
  const auto* received = static_cast<const char*>(sent.received);
  for (const int peer : peers_) {
    sources[static_cast<size_t>(peer)] = received;
    received += sent.part_numel * sent.element_bytes;
  }
  add_piece(sent, sources, sent.done, sent.next_numel());
  sent.done += sent.next_numel();
}

void C10dCommunicator::finish_exchange(Exchange& filled) {
  auto& sent = static_cast<Sent&>(filled);
  const std::string what = described(Collective::Operation::Reduction, sent.segment);
  finish_part(sent);
  while (sent.done < sent.shard_numel) {
    attempt(what, [&] { post_receives(sent); });
    finish_part(sent);
  }
  attempt(what, [&] { await_messages(sent.messages.sends); });
}

std::vector<std::string> C10dCommunicator::all_gather_bytes(const std::string& bytes) {
  std::vector<double> sizes(static_cast<size_t>(world_size()), 0.0);
  sizes[static_cast<size_t>(rank())] = static_cast<double>(bytes.size());
  all_reduce(sizes, ReduceOp::Sum);
  // No message is empty.
  const auto longest = static_cast<size_t>(*std::max_element(sizes.begin(), sizes.end())) + 1;
  std::string mine = bytes;
  mine.resize(longest);
  std::string all(longest * sizes.size(), '\0');
  gather_bytes("all-gather of texts", mine.data(), static_cast<int64_t>(longest), all.data());
  std::vector<std::string> texts;
  for (const double size : sizes) {
    texts.push_back(all.substr(texts.size() * longest, static_cast<size_t>(size)));
  }
  return texts;
}

// The number of ranks that have the bytes doubles with each step.
void C10dCommunicator::broadcast_bytes(void* data, int64_t bytes, int root) {
  const int size = world_size();
  const int place = (rank() - root + size) % size;
  const auto rank_at = [&](int of) { return (of + root) % size; };
  const int tag = tag_of(next_number(next_gather_), kind_of(bytes));
  attempt("broadcast from rank " + std::to_string(root), [&] {
    for (int step = 1; step < size; step *= 2) {
      std::vector<Work> work;
      if (place < step && place + step < size) {
        work.push_back(send_to(*groups_.gather, data, bytes, rank_at(place + step), tag));
      } else if (place >= step && place < 2 * step) {
        work.push_back(receive_from(*groups_.gather, data, bytes, rank_at(place - step), tag));
      }
      await_messages(work);
    }
  });
}

void C10dCommunicator::send_bytes(void* data, int64_t bytes, int from, int to) {
  if (rank() != from && rank() != to) {
    return;
  }
  const int tag = 2 * kTags + static_cast<int>(bytes % kTags);
  attempt("send from rank " + std::to_string(from) + " to rank " + std::to_string(to), [&] {
    std::vector<Work> work{rank() == from ? send_to(*groups_.gather, data, bytes, to, tag)
                                          : receive_from(*groups_.gather, data, bytes, from, tag)};
    await_messages(work);
  });
}

}  // namespace sherd::detail
