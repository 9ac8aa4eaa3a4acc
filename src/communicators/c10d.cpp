#include "communicators/c10d.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include "communicators/exchange.h"
#include "communicators/reduce_buffers.h"

namespace sherd::detail {

namespace {

at::Tensor bytes_at(void* data, int64_t bytes) {
  return at::from_blob(data, {bytes}, at::kByte);
}

}  // namespace

std::string C10dCommunicator::transport() const {
  return "process groups (" + groups_.gather->getBackendName() + ")";
}

C10dMessages C10dCommunicator::start_all_gather(const void* mine, void* all, int64_t bytes) {
  C10dMessages messages(groups_.gather, gather_tags_.take(C10dMessages::tags_of(1)), identity());
  messages.exchange_identities();
  auto* places = static_cast<char*>(all);
  for (int peer = 0; peer < world_size(); ++peer) {
    if (peer != rank()) {
      messages.send(mine, bytes, peer, 0);
      messages.receive(places + peer * bytes, bytes, peer, 0);
    }
  }
  std::memcpy(places + rank() * bytes, mine, static_cast<size_t>(bytes));
  return messages;
}

// The others' bytes come only from ranks in step; those of others are not waited for.
void C10dCommunicator::wait_for_peers(const std::string& what, C10dMessages& messages) {
  const auto by_rank = exchange(groups_.roster, what, [&] { return messages.identities(); });
  check_identities(by_rank[static_cast<size_t>(rank())], by_rank);
  exchange(groups_.roster, what, [&] { messages.wait_received(); });
}

void C10dCommunicator::finish_all_gather(const std::string& what, C10dMessages& messages) {
  wait_for_peers(what, messages);
  exchange(groups_.roster, what, [&] { messages.wait_sent(); });
}

void* C10dCommunicator::start_gather(Segment segment, void* slot) {
  exchange(groups_.roster, described(Collective::Operation::Gather, segment), [&] {
    gathers_.insert_or_assign(segment, start_all_gather(travelling_shard(segment), slot,
                                                        segment_bytes(spec(segment), 1)));
  });
  return slot;
}

void C10dCommunicator::finish_gather(Segment segment) {
  auto node = gathers_.extract(segment);
  finish_all_gather(described(Collective::Operation::Gather, segment), node.mapped());
}

int64_t C10dCommunicator::part_numel(const Sent& sent) const {
  const int64_t block = block_piece_bytes() / sent.element_bytes();
  const int64_t numel = spec(sent.segment).shard_numel;
  return block == 0 ? numel : std::min(block, numel);
}

int64_t C10dCommunicator::next_part(const Sent& sent) const {
  return std::min(part_numel(sent), spec(sent.segment).shard_numel - sent.done);
}

// A root's alone comes in one part.
int64_t C10dCommunicator::receive_bytes(const SegmentSpec& spec, c10::ScalarType dtype) const {
  const int64_t piece = spec.shard_numel * static_cast<int64_t>(c10::elementSize(dtype));
  return (block_piece_bytes() > 0 ? block_piece_bytes() : piece) * (world_size() - 1);
}

std::unique_ptr<BufferedCommunicator::Exchange> C10dCommunicator::make_exchange() {
  return std::make_unique<Sent>();
}

void C10dCommunicator::start_exchange(Exchange& filled) {
  auto& sent = static_cast<Sent&>(filled);
  const int64_t part = part_numel(sent);
  const int parts = static_cast<int>((spec(sent.segment).shard_numel + part - 1) / part);
  const int tag = reduce_tags_.take(C10dMessages::tags_of(parts));
  exchange(groups_.roster, described(Collective::Operation::Reduction, sent.segment), [&] {
    sent.messages = C10dMessages(groups_.reduce, tag, sent.identity);
    sent.messages.exchange_identities();
    post_sends(sent);
    post_receives(sent);
  });
}

void C10dCommunicator::post_sends(Sent& sent) {
  const int64_t all = spec(sent.segment).shard_numel;
  const int64_t part_size = part_numel(sent);
  int part = 0;
  for (int64_t first = 0; first < all; first += part_size, ++part) {
    const int64_t numel = std::min(part_size, all - first);
    for (int peer = 0; peer < world_size(); ++peer) {
      if (peer != rank()) {
        const char* piece =
            static_cast<const char*>(sent.gradients) + (peer * all + first) * sent.element_bytes();
        sent.messages.send(piece, numel * sent.element_bytes(), peer, part);
      }
    }
  }
}

void C10dCommunicator::post_receives(Sent& sent) {
  const int part = static_cast<int>(sent.done / part_numel(sent));
  auto* place = static_cast<char*>(sent.received.data());
  for (int peer = 0; peer < world_size(); ++peer) {
    if (peer != rank()) {
      sent.messages.receive(place, next_part(sent) * sent.element_bytes(), peer, part);
      place += part_numel(sent) * sent.element_bytes();
    }
  }
}

void C10dCommunicator::finish_part(Sent& sent) {
  const int64_t all = spec(sent.segment).shard_numel;
  wait_for_peers(described(Collective::Operation::Reduction, sent.segment), sent.messages);
  const auto* received = static_cast<const char*>(sent.received.data());
  std::vector<const void*> sources;
  for (int peer = 0; peer < world_size(); ++peer) {
    if (peer == rank()) {
      sources.push_back(static_cast<const char*>(sent.gradients) +
                        (peer * all + sent.done) * sent.element_bytes());
    } else {
      sources.push_back(received);
      received += part_numel(sent) * sent.element_bytes();
    }
  }
  add_piece(sent, sources, sent.done, next_part(sent));
  sent.done += next_part(sent);
}

void C10dCommunicator::finish_exchange(Exchange& filled) {
  auto& sent = static_cast<Sent&>(filled);
  const std::string what = described(Collective::Operation::Reduction, sent.segment);
  finish_part(sent);
  while (sent.done < spec(sent.segment).shard_numel) {
    exchange(groups_.roster, what, [&] { post_receives(sent); });
    finish_part(sent);
  }
  exchange(groups_.roster, what, [&] { sent.messages.wait_sent(); });
}

void C10dCommunicator::gather_numbers(std::span<const double> mine, std::span<double> all) {
  const std::string what = "all-reduce";
  C10dMessages messages = exchange(groups_.roster, what, [&] {
    return start_all_gather(mine.data(), all.data(), static_cast<int64_t>(mine.size_bytes()));
  });
  finish_all_gather(what, messages);
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
