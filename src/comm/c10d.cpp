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

// Until works end whose connections a lost rank has closed.
constexpr std::chrono::milliseconds kToNoticeAFailure{200};
// How often a wait for a collective looks at the progress of the ranks.
constexpr std::chrono::milliseconds kBetweenLooksAtProgress{100};
constexpr int kBetweenAborts_ms = 100;

at::Tensor bytes_at(void* data, int64_t bytes) {
  return at::from_blob(data, {bytes}, at::kByte);
}

// Waits for a collective of Gloo for a while. Throws what it threw.
bool has_ended(c10d::Work& work) {
  try {
    work.wait(kBetweenLooksAtProgress);
  } catch (const std::exception&) {
    if (!work.isCompleted()) {
      return false;
    }
    work.wait();  // it ended meanwhile, or this was its own failure
  }
  return true;
}

}  // namespace

c10::intrusive_ptr<c10d::Work> send_to(c10d::Backend& group, void* data, int64_t bytes, int peer,
                                       int tag) {
  std::vector<at::Tensor> tensors{bytes_at(data, bytes)};
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

// The group's destructor joins a thread that may wait for a silent rank, uninterruptibly. So the
// group lives on in a thread of its own until that rank answers or ends.
C10dCommunicator::~C10dCommunicator() {
  if (!has_failed_) {
    return;
  }
  for (auto& [segment, work] : gathers_) {
    unfinished_.push_back(std::move(work));
  }
  const auto deadline = std::chrono::steady_clock::now() + kToNoticeAFailure;
  const auto is_under_way = [](const Work& work) { return !work->isCompleted(); };
  while (std::any_of(unfinished_.begin(), unfinished_.end(), is_under_way)) {
    if (std::chrono::steady_clock::now() >= deadline) {
      std::thread([groups = std::move(groups_), works = std::move(unfinished_)] {
        for (const Work& work : works) {
          try {
            work->wait();
          } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): it failed long ago
          }
        }
      }).detach();
      return;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

void C10dCommunicator::await(const Work& work) {
  Patience patience = groups_.notes.patience();
  try {
    while (!has_ended(*work)) {
      if (patience.is_over()) {
        throw Error(ExitCode::Hang, "no rank has made progress for the timeout");
      }
    }
  } catch (const std::exception&) {
    unfinished_.push_back(work);
    throw;
  }
}

void* C10dCommunicator::start_gather(Segment segment, void* slot, const GatherEvents& /*after*/) {
  const int64_t bytes = segment_bytes(spec(segment), 1);
  at::Tensor out = bytes_at(slot, bytes * world_size());
  at::Tensor in = bytes_at(travelling_shard(segment), bytes);
  gathers_[segment] = attempt(described(Collective::Operation::Gather, segment),
                              [&] { return groups_.gather->_allgather_base(out, in); });
  return slot;
}

void C10dCommunicator::start_exchange(Exchange& filled) {
  auto& sent = static_cast<Sent&>(filled);
  sent.shard_numel = spec(sent.segment).shard_numel;
  sent.element_bytes = static_cast<int64_t>(c10::elementSize(sent.dtype));
  const int64_t block = block_piece_bytes() / sent.element_bytes;
  sent.part_numel = block == 0 ? sent.shard_numel : std::min(block, sent.shard_numel);
  const int64_t parts = (sent.shard_numel + sent.part_numel - 1) / sent.part_numel;
  sent.first_tag = next_tag_;
  next_tag_ = (next_tag_ + 1 + static_cast<int>(parts)) % kTags;  // the first for the identities
  attempt(described(Collective::Operation::Reduction, sent.segment), [&] {
    exchange_identities(sent);
    post_sends(sent);
    post_receives(sent);
  });
}

template <class Fn>
void C10dCommunicator::for_each_peer(Fn&& fn) const {
  for (int peer = 0; peer < world_size(); ++peer) {
    if (peer != rank()) {
      fn(peer);
    }
  }
}

void C10dCommunicator::exchange_identities(Sent& sent) {
  sent.identities.assign(static_cast<size_t>(world_size()), sent.identity);
  const auto at = [&](int member) { return &sent.identities[static_cast<size_t>(member)]; };
  for_each_peer([&](int peer) {
    sent.sends.push_back(
        send_to(*groups_.reduce, at(rank()), sizeof(Identity), peer, sent.first_tag));
    sent.identity_receives.push_back(
        receive_from(*groups_.reduce, at(peer), sizeof(Identity), peer, sent.first_tag));
  });
}

// Gloo ends the process where a message is longer than the memory it is received in. So messages
// of ranks that reduce different segments or dtypes have different tags, and identities say so.
int C10dCommunicator::tag_of_part(const Sent& sent, int part) const {
  const auto kinds = 2 * std::ssize(segments());
  const int64_t kind = 2 * static_cast<int64_t>(sent.segment) + (sent.element_bytes == 4 ? 1 : 0);
  const int64_t number = static_cast<int64_t>(sent.first_tag) + 1 + part;
  return kTags + static_cast<int>((number * kinds + kind) % kTags);
}

void C10dCommunicator::post_sends(Sent& sent) {
  int part_number = 0;
  for (int64_t first = 0; first < sent.shard_numel; first += sent.part_numel) {
    const int tag = tag_of_part(sent, part_number++);
    const int64_t numel = std::min(sent.part_numel, sent.shard_numel - first);
    for_each_peer([&](int peer) {
      char* part = static_cast<char*>(sent.gradients) +
                   (peer * sent.shard_numel + first) * sent.element_bytes;
      sent.sends.push_back(send_to(*groups_.reduce, part, numel * sent.element_bytes, peer, tag));
    });
  }
}

void C10dCommunicator::post_receives(Sent& sent) {
  const int tag = tag_of_part(sent, static_cast<int>(sent.done / sent.part_numel));
  auto* place = static_cast<char*>(sent.received);
  for_each_peer([&](int peer) {
    sent.receives.push_back(
        receive_from(*groups_.reduce, place, sent.next_numel() * sent.element_bytes, peer, tag));
    place += sent.part_numel * sent.element_bytes;
  });
}

void C10dCommunicator::finish_part(Sent& sent) {
  const std::string what = described(Collective::Operation::Reduction, sent.segment);
  if (!sent.identity_receives.empty()) {
    attempt(what, [&] { await_messages(std::exchange(sent.identity_receives, {})); });
  }
  check_identities(sent, sent.identities);  // again where the first time has thrown
  attempt(what, [&] { await_messages(std::exchange(sent.receives, {})); });
  std::vector<const void*> sources(
      static_cast<size_t>(world_size()),
      static_cast<const char*>(sent.gradients) +
          (rank() * sent.shard_numel + sent.done) * sent.element_bytes);
  const auto* received = static_cast<const char*>(sent.received);
  for_each_peer([&](int peer) {
    sources[static_cast<size_t>(peer)] = received;
    received += sent.part_numel * sent.element_bytes;
  });
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
  attempt(what, [&] { await_messages(sent.sends); });
}

// The memory is the exchange's own: an exchange that was given up may still be answered later.
void C10dCommunicator::gather_numbers(std::span<const double> mine, std::span<double> all) {
  at::Tensor in = at::empty({static_cast<int64_t>(mine.size_bytes())}, at::kByte);
  at::Tensor out = at::empty({static_cast<int64_t>(all.size_bytes())}, at::kByte);
  std::memcpy(in.mutable_data_ptr(), mine.data(), mine.size_bytes());
  attempt("all-reduce", [&] { await(groups_.gather->_allgather_base(out, in)); });
  std::memcpy(all.data(), out.const_data_ptr(), all.size_bytes());
}

std::vector<std::string> C10dCommunicator::all_gather_bytes(const std::string& bytes) {
  std::vector<double> sizes(static_cast<size_t>(world_size()), 0.0);
  sizes[static_cast<size_t>(rank())] = static_cast<double>(bytes.size());
  all_reduce(sizes, ReduceOp::Sum);
  const auto longest = static_cast<int64_t>(*std::max_element(sizes.begin(), sizes.end())) + 1;
  at::Tensor mine = at::empty({longest}, at::kByte);
  std::memcpy(mine.mutable_data_ptr(), bytes.data(), bytes.size());
  at::Tensor all = at::empty({world_size() * longest}, at::kByte);
  attempt("all-gather of texts", [&] { await(groups_.gather->_allgather_base(all, mine)); });
  std::vector<std::string> texts;
  for (int64_t peer = 0; peer < world_size(); ++peer) {
    const auto* begin = static_cast<const char*>(all.const_data_ptr()) + peer * longest;
    texts.emplace_back(begin, begin + static_cast<int64_t>(sizes[static_cast<size_t>(peer)]));
  }
  return texts;
}

void C10dCommunicator::broadcast_bytes(void* data, int64_t bytes, int root) {
  c10d::BroadcastOptions options;
  options.rootRank = root;
  std::vector<at::Tensor> tensors{bytes_at(data, bytes)};
  attempt("broadcast from rank " + std::to_string(root),
          [&] { await(groups_.gather->broadcast(tensors, options)); });
}

void C10dCommunicator::send_bytes(void* data, int64_t bytes, int from, int to) {
  if (rank() != from && rank() != to) {
    return;
  }
  constexpr int kTag = 0;  // reductions use the other group
  attempt("send from rank " + std::to_string(from) + " to rank " + std::to_string(to), [&] {
    await_messages({rank() == from ? send_to(*groups_.gather, data, bytes, to, kTag)
                                   : receive_from(*groups_.gather, data, bytes, from, kTag)});
  });
}

}  // namespace sherd::detail
