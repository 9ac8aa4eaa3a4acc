#include "comm/hosts.h"

#include <algorithm>
#include <utility>

#include "comm/communicator_memory.h"
#include "comm/reduce_buffers.h"
#include "sherd/error.h"
#include "storage/movable_storage.h"

namespace sherd::detail {

namespace {

constexpr int64_t kSegmentAlignmentBytes = 4096;  // a page

}  // namespace

HostLayout::HostLayout(const std::vector<SegmentSpec>& segments, int world_size, int host_size)
    : host_size_(host_size) {
  int64_t end = line(static_cast<int>(segments.size()), 0);
  for (const SegmentSpec& spec : segments) {
    const int64_t begin =
        (end + kSegmentAlignmentBytes - 1) / kSegmentAlignmentBytes * kSegmentAlignmentBytes;
    pieces_.push_back(begin);
    end = begin + segment_bytes(spec, world_size);
  }
  bytes_ = std::max(end, kSegmentAlignmentBytes);
}

HostsCommunicator::~HostsCommunicator() {
  if (has_failed()) {
    return;  // a rank that is cut off would be waited for once more
  }
  for (Segment segment = 0; segment < static_cast<Segment>(accounts_.size()); ++segment) {
    try {
      // Of a gather that failed here the counterparts may wait in the same way.
      if (!is_cancelled_.load(std::memory_order_acquire) && !account(segment).is_under_way) {
        finish_sends(segment);
      }
    } catch (const Error&) {
      return;  // nobody is left to receive it
    }
  }
}

std::string HostsCommunicator::transport() const {
  return "shared memory within hosts, " + C10dCommunicator::transport() + " between them";
}

std::shared_ptr<CommunicatorMemory> HostsCommunicator::allocate() {
  accounts_.resize(segments().size());
  layout_ = HostLayout(segments(), world_size(), group_->size());
  agree_on_fault(fault_of([&] {
    if (group_->rank() == 0) {
      data_.set_size(layout_.bytes());
    }
  }));
  agree_on_fault(fault_of([&] {
    data_.map(layout_.bytes());
    for (Segment segment = 0; segment < static_cast<Segment>(segments().size()); ++segment) {
      data_.populate(piece(segment, rank()), segment_bytes(spec(segment), 1));
    }
  }));
  auto memory = std::make_shared<CommunicatorMemory>();
  for (Segment segment = 0; segment < static_cast<Segment>(segments().size()); ++segment) {
    pieces_.emplace_back(segment_bytes(spec(segment), 1), spec(segment).shard_kind, ledger());
    memory->travelling.push_back(piece(segment, rank()));
  }
  memory->reduce = std::make_unique<ReduceBuffers>(segments(), world_size(),
                                                   MemoryKind::ReduceBuffer, ledger(), device());
  return memory;
}

// Among the ranks of all hosts: a host alone would leave the others waiting.
void HostsCommunicator::agree_on_fault(const std::string& fault) {
  const double mine = fault.empty() ? 0 : 1;
  std::vector<double> faulty(static_cast<size_t>(world_size()));
  gather_numbers({&mine, 1}, faulty);
  const auto found = std::find(faulty.begin(), faulty.end(), 1.0);
  if (found != faulty.end()) {
    refuse_shared_memory(fault, rank_of_world(static_cast<int>(found - faulty.begin())));
  }
}

char* HostsCommunicator::piece(Segment segment, int member) const {
  return data_.data() + layout_.pieces(segment) + segment_bytes(spec(segment), 1) * member;
}

at::Tensor HostsCommunicator::bytes_of(Segment segment, int member) const {
  return flat_tensor(piece(segment, member), segment_bytes(spec(segment), 1), at::kByte, device());
}

GatherLine& HostsCommunicator::line(Segment segment, int host_member) const {
  return *reinterpret_cast<GatherLine*>(data_.data() + layout_.line(segment, host_member));
}

SharedGroup::CounterOf HostsCommunicator::counters(Segment segment,
                                                   SharedCounter GatherLine::*counter) const {
  return [this, segment, counter](int host_member) -> SharedCounter& {
    return line(segment, host_member).*counter;
  };
}

void HostsCommunicator::wait_for_host(Segment segment, SharedCounter GatherLine::*counter,
                                      uint32_t value, const char* what) const {
  group_->wait_for_all(counters(segment, counter), value, {what, &spec(segment).name});
}

// The ranks at this rank's place on the other hosts.
template <class Fn>
void HostsCommunicator::for_each_counterpart(Fn&& fn) const {
  for (int member = group_->rank(); member < world_size(); member += group_->size()) {
    if (member != rank()) {
      fn(member);
    }
  }
}

void HostsCommunicator::post_sends(Segment segment) {
  Account& mine = account(segment);
  attempt(described(Collective::Operation::Gather, segment), [&] {
    for_each_counterpart([&](int member) {
      std::vector<at::Tensor> tensors{bytes_of(segment, rank())};
      mine.sends.push_back(groups().gather->send(tensors, member, mine.tag));
    });
  });
}

void HostsCommunicator::post_receives(Segment segment) {
  Account& mine = account(segment);
  for_each_counterpart([&](int member) {
    data_.take_pages(piece(segment, member), segment_bytes(spec(segment), 1));
  });
  attempt(described(Collective::Operation::Gather, segment), [&] {
    for_each_counterpart([&](int member) {
      std::vector<at::Tensor> tensors{bytes_of(segment, member)};
      mine.receives.push_back(groups().gather->recv(tensors, member, mine.tag));
    });
  });
  mine.has_posted_receives = true;
}

void HostsCommunicator::finish_sends(Segment segment) {
  Account& mine = account(segment);
  if (!mine.sends.empty()) {
    attempt(described(Collective::Operation::Gather, segment),
            [&] { await_messages(std::exchange(mine.sends, {})); });
  }
}

void* HostsCommunicator::start_gather(Segment segment, void* /*slot*/,
                                      const GatherEvents& /*after*/) {
  Account& mine = account(segment);
  if (mine.is_under_way) {
    give_up(segment);
  }
  finish_sends(segment);
  mine.keeps_pages = false;  // they are about to be used again
  give_back_pages();
  mine.tag = next_gather_tag_;
  next_gather_tag_ = (next_gather_tag_ + 1) % kTags;
  mine.is_under_way = true;
  mine.has_posted_receives = false;
  awaited_.push_back(segment);
  mine.received.emplace(segment_bytes(spec(segment), hosts() - 1), MemoryKind::Gathered, ledger());
  post_sends(segment);
  // Others of the host may still read what was gathered last; then nothing is received for now.
  if (group_->all_reached(counters(segment, &GatherLine::released), mine.read)) {
    post_receives(segment);
  }
  return piece(segment, 0);
}

// In the order in which gathers were started, and waiting for nothing that another rank of the host
// does later: it may be waiting for any of these, while this rank lets go of them in another order.
void HostsCommunicator::receive_until(Segment segment) {
  while (std::find(awaited_.begin(), awaited_.end(), segment) != awaited_.end()) {
    const Segment oldest = awaited_.front();
    Account& mine = account(oldest);
    if (!mine.has_posted_receives) {
      wait_for_host(oldest, &GatherLine::released, mine.read, "all-gather");
      post_receives(oldest);
    }
    attempt(described(Collective::Operation::Gather, oldest),
            [&] { await_messages(std::exchange(mine.receives, {})); });
    line(oldest, group_->rank()).arrived.raise_to(++mine.arrived);
    awaited_.pop_front();
  }
}

void HostsCommunicator::finish_gather(Segment segment) {
  Account& mine = account(segment);
  receive_until(segment);
  wait_for_host(segment, &GatherLine::published, mine.published, "all-gather");
  wait_for_host(segment, &GatherLine::arrived, mine.arrived, "all-gather");
  ++mine.read;
  mine.is_under_way = false;
}

// Others of the host count on what this rank receives. It reads nothing, and so waits for no other.
void HostsCommunicator::give_up(Segment segment) {
  receive_until(segment);
  ++account(segment).read;
  account(segment).is_under_way = false;
  finish_reading(segment);
}

void HostsCommunicator::finish_reading(Segment segment) {
  Account& mine = account(segment);
  line(segment, group_->rank()).released.raise_to(++mine.released);
  mine.received.reset();
  mine.keeps_pages = true;
  give_back_pages();
}

// Each rank those that it received itself: they are written to by no other, and by itself not
// before its next gather.
void HostsCommunicator::give_back_pages() {
  for (Segment segment = 0; segment < static_cast<Segment>(accounts_.size()); ++segment) {
    Account& mine = account(segment);
    if (mine.keeps_pages &&
        group_->all_reached(counters(segment, &GatherLine::released), mine.released)) {
      mine.keeps_pages = false;
      for_each_counterpart([&](int member) {
        data_.give_back_pages(piece(segment, member), segment_bytes(spec(segment), 1));
      });
    }
  }
}

void HostsCommunicator::await_readers(Segment segment) {
  finish_sends(segment);
  wait_for_host(segment, &GatherLine::released, account(segment).read, "optimizer step");
}

void HostsCommunicator::show_published(Segment segment) {
  line(segment, group_->rank()).published.raise_to(++account(segment).published);
}

void HostsCommunicator::forget_exchanges() {
  for (Segment segment = 0; segment < static_cast<Segment>(accounts_.size()); ++segment) {
    if (account(segment).is_under_way && !is_cancelled_.load(std::memory_order_acquire)) {
      give_up(segment);
    }
  }
}

void HostsCommunicator::interrupt(const std::string& why) {
  is_cancelled_.store(true, std::memory_order_release);
  group_->cancel(why);
}

}  // namespace sherd::detail
