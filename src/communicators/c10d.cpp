#include "communicators/c10d.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include "communicators/exchange.h"

namespace sherd::detail {

namespace {

constexpr int kTags =
    1 << 30;  // tags come round again long after their messages have been received

at::Tensor bytes_at(void* data, int64_t bytes) {
  return at::from_blob(data, {bytes}, at::kByte);
}

}  // namespace

void C10dCommunicator::attach(std::vector<SegmentSpec> segments, c10::Device device,
                              std::shared_ptr<MemoryLedger> ledger) {
  segments_ = std::move(segments);
  ledger_ = ledger;
  for (const SegmentSpec& spec : segments_) {
    shards_.emplace_back(segment_bytes(spec, 1), spec.shard_kind, ledger, device);
  }
  buffers_ = std::make_unique<ReduceBuffers>(segments_, world_size(), MemoryKind::ReduceBuffer,
                                             std::move(ledger), device);
}

void* C10dCommunicator::travelling_shard(Segment segment) {
  return shards_[static_cast<size_t>(segment)].data();
}

void* C10dCommunicator::gather(Segment segment, void* slot) {
  ++counts_.gathers;
  const auto index = static_cast<size_t>(segment);
  const int64_t bytes = segment_bytes(segments_[index], 1);
  counts_.bytes_sent += bytes * (world_size() - 1);
  history_.add(History::Kind::Gather, segment, segments_[index].dtype);
  at::Tensor out = bytes_at(slot, bytes * world_size());
  at::Tensor in = bytes_at(shards_[index].data(), bytes);
  gathers_[segment] = exchange(groups_.roster, "all-gather of unit '" + segments_[index].name + "'",
                               [&] { return groups_.gather->_allgather_base(out, in); });
  return slot;
}

void C10dCommunicator::wait_gather(Segment segment) {
  auto node = gathers_.extract(segment);
  const auto index = static_cast<size_t>(segment);
  if (!node.empty()) {
    exchange(groups_.roster, "all-gather of unit '" + segments_[index].name + "'",
             [&] { return node.mapped()->wait(); });
  }
}

void* C10dCommunicator::acquire_reduce_buffer(Segment segment, const Reduction& /*target*/) {
  while (pending_.size() >= kReductionsInFlight) {
    finish_oldest();
  }
  return acquired_[segment] = buffers_->acquire(segment);
}

void C10dCommunicator::release_reduce_buffer(Segment segment) {
  buffers_->release(acquired_.extract(segment).mapped());
}

int64_t C10dCommunicator::part_numel(const Pending& pending) const {
  const SegmentSpec& spec = segments_[static_cast<size_t>(pending.segment)];
  const int64_t block = buffers_->block_bytes() / world_size() / pending.element_bytes();
  return block == 0 ? spec.shard_numel : std::min(block, spec.shard_numel);
}

int64_t C10dCommunicator::next_part(const Pending& pending) const {
  const SegmentSpec& spec = segments_[static_cast<size_t>(pending.segment)];
  return std::min(part_numel(pending), spec.shard_numel - pending.done);
}

void C10dCommunicator::reduce(Segment segment, const Reduction& target) {
  ++counts_.reductions;
  while (pending_.size() >= kReductionsInFlight) {
    finish_oldest();
  }
  const SegmentSpec& spec = segments_[static_cast<size_t>(segment)];
  counts_.bytes_sent += reduced_bytes(spec, target) * (world_size() - 1);
  Pending pending{segment, target, reduced_dtype(spec, target), nullptr, next_tag_};
  history_.add(History::Kind::Reduction, segment, pending.dtype);
  if (target.source == nullptr) {
    pending.acquired = acquired_.extract(segment).mapped();
  }
  const int64_t part = part_numel(pending);
  const int parts = static_cast<int>((spec.shard_numel + part - 1) / part);
  next_tag_ = (next_tag_ + 1 + parts) % kTags;  // the first for the signatures
  pending_.push_back(std::move(pending));
  exchange(groups_.roster, "exchange of gradients of unit '" + spec.name + "'", [&] {
    exchange_signatures(pending_.back());
    post_sends(pending_.back());
    post_receives(pending_.back());
  });
}

void C10dCommunicator::exchange_signatures(Pending& pending) {
  pending.signatures = at::empty({world_size()}, at::kDouble);
  pending.signatures[rank()] = history_.signature();
  for (int peer = 0; peer < world_size(); ++peer) {
    if (peer != rank()) {
      std::vector<at::Tensor> mine{pending.signatures.narrow(0, rank(), 1)};
      std::vector<at::Tensor> theirs{pending.signatures.narrow(0, peer, 1)};
      pending.sends.push_back(groups_.reduce->send(mine, peer, pending.first_tag));
      pending.receives.push_back(groups_.reduce->recv(theirs, peer, pending.first_tag));
    }
  }
}

void C10dCommunicator::post_sends(Pending& pending) {
  const SegmentSpec& spec = segments_[static_cast<size_t>(pending.segment)];
  const int64_t part = part_numel(pending);
  int tag = pending.first_tag + 1;
  for (int64_t first = 0; first < spec.shard_numel; first += part, ++tag) {
    const int64_t numel = std::min(part, spec.shard_numel - first);
    for (int peer = 0; peer < world_size(); ++peer) {
      if (peer != rank()) {
        char* piece =
            pending.gradients() + (peer * spec.shard_numel + first) * pending.element_bytes();
        std::vector<at::Tensor> tensors{bytes_at(piece, numel * pending.element_bytes())};
        pending.sends.push_back(groups_.reduce->send(tensors, peer, tag));
      }
    }
  }
}

void C10dCommunicator::post_receives(Pending& pending) {
  const int64_t part_bytes = part_numel(pending) * pending.element_bytes();
  const int64_t wanted =
      std::max(buffers_->block_bytes() / world_size(), part_bytes) * (world_size() - 1);
  if (pending.received.data() == nullptr) {
    auto free = std::find_if(receive_buffers_.begin(), receive_buffers_.end(),
                             [&](const Buffer& b) { return b.bytes() == wanted; });
    if (free != receive_buffers_.end()) {
      pending.received = std::move(*free);
      receive_buffers_.erase(free);
    } else {
      pending.received = Buffer(wanted, MemoryKind::ReceiveBuffer, ledger_, buffers_->device());
    }
  }
  const int tag = pending.first_tag + 1 + static_cast<int>(pending.done / part_numel(pending));
  auto* place = static_cast<char*>(pending.received.data());
  for (int peer = 0; peer < world_size(); ++peer) {
    if (peer != rank()) {
      std::vector<at::Tensor> tensors{
          bytes_at(place, next_part(pending) * pending.element_bytes())};
      pending.receives.push_back(groups_.reduce->recv(tensors, peer, tag));
      place += part_bytes;
    }
  }
}

void C10dCommunicator::finish_part(Pending& pending) {
  const SegmentSpec& spec = segments_[static_cast<size_t>(pending.segment)];
  const std::string what = "exchange of gradients of unit '" + spec.name + "'";
  exchange(groups_.roster, what, [&] {
    for (const Work& receive : std::exchange(pending.receives, {})) {
      receive->wait();
    }
  });
  check_signatures({pending.signatures.const_data_ptr<double>(), static_cast<size_t>(world_size())},
                   rank(), what);
  const int64_t part_bytes = part_numel(pending) * pending.element_bytes();
  const auto* received = static_cast<const char*>(pending.received.data());
  std::vector<const void*> sources;
  for (int peer = 0; peer < world_size(); ++peer) {
    if (peer == rank()) {
      sources.push_back(pending.gradients() +
                        (peer * spec.shard_numel + pending.done) * pending.element_bytes());
    } else {
      sources.push_back(received);
      received += part_bytes;
    }
  }
  sum_piece(pending.target, pending.dtype, sources, pending.done, next_part(pending),
            buffers_->device());
  pending.done += next_part(pending);
}

void C10dCommunicator::finish_oldest() {
  Pending& oldest = pending_.front();
  const int64_t all = segments_[static_cast<size_t>(oldest.segment)].shard_numel;
  const std::string what =
      "exchange of gradients of unit '" + segments_[static_cast<size_t>(oldest.segment)].name + "'";
  finish_part(oldest);
  while (oldest.done < all) {
    exchange(groups_.roster, what, [&] { post_receives(oldest); });
    finish_part(oldest);
  }
  exchange(groups_.roster, what, [&] {
    for (const Work& send : oldest.sends) {
      send->wait();
    }
  });
  if (oldest.acquired != nullptr) {
    buffers_->release(oldest.acquired);
  }
  receive_buffers_.push_back(std::move(oldest.received));
  pending_.pop_front();
}

void C10dCommunicator::finish_reductions() {
  while (!pending_.empty()) {
    finish_oldest();
  }
}

void C10dCommunicator::abandon() {
  finish_reductions();
  acquired_.clear();
  buffers_->release_all();
}

int64_t C10dCommunicator::most_received_bytes() const {
  int64_t largest = buffers_->block_bytes() / world_size();
  if (largest == 0) {  // only a root, in one part; fp32 where micro-batches accumulated
    for (const SegmentSpec& spec : segments_) {
      largest = std::max(largest, spec.trainable ? spec.shard_numel * 4 : 0);
    }
  }
  const auto trainable = static_cast<size_t>(
      std::count_if(segments_.begin(), segments_.end(), [](const auto& s) { return s.trainable; }));
  const auto buffers = static_cast<int64_t>(std::min(kReductionsInFlight, trainable));
  return buffers * largest * (world_size() - 1);
}

void C10dCommunicator::all_reduce(std::span<double> values, ReduceOp op) {
  ++counts_.all_reduces;
  // Gathered and reduced here, so that every rank adds in rank order and holds the same bits.
  at::Tensor mine = signed_values(values, history_);
  at::Tensor all = at::empty({world_size() * mine.numel()}, at::kDouble);
  exchange(groups_.roster, "all-reduce",
           [&] { return groups_.gather->_allgather_base(all, mine)->wait(); });
  reduce_signed_values(values, all, op, rank());
}

void C10dCommunicator::barrier() {
  double nothing = 0;
  all_reduce({&nothing, 1}, ReduceOp::Sum);
}

std::vector<std::string> C10dCommunicator::all_gather_bytes(const std::string& bytes) {
  std::vector<double> sizes(static_cast<size_t>(world_size()), 0.0);
  sizes[static_cast<size_t>(rank())] = static_cast<double>(bytes.size());
  all_reduce(sizes, ReduceOp::Sum);
  const auto longest = static_cast<int64_t>(*std::max_element(sizes.begin(), sizes.end())) + 1;
  at::Tensor mine = at::empty({longest}, at::kByte);
  std::memcpy(mine.mutable_data_ptr(), bytes.data(), bytes.size());
  at::Tensor all = at::empty({world_size() * longest}, at::kByte);
  exchange(groups_.roster, "all-gather of texts",
           [&] { return groups_.gather->_allgather_base(all, mine)->wait(); });
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
  exchange(groups_.roster, "broadcast from rank " + std::to_string(root),
           [&] { return groups_.gather->broadcast(tensors, options)->wait(); });
}

}  // namespace sherd::detail
