#include "comm/hosts.h"

#include <algorithm>

#include "sherd/error.h"

namespace sherd::detail {

HostsCommunicator::~HostsCommunicator() {
  if (has_failed()) {
    return;  // else it would wait once more for a rank that is cut off
  }
  for (Segment segment = 0; segment < static_cast<Segment>(segment_gathers_.size()); ++segment) {
    try {
      // After a gather that failed here, the counterparts may wait in the same way.
      if (!is_cancelled_.load(std::memory_order_acquire) && !gathers(segment).is_in_flight) {
        finish_sends(segment);
      }
    } catch (const Error&) {
      return;  // the receivers are gone
    }
  }
}

std::shared_ptr<CommunicatorMemory> HostsCommunicator::allocate() {
  segment_gathers_.resize(segments().size());
  // Among the ranks of all hosts: a host alone would leave the others waiting.
  auto memory = host_.allocate(segments(), groups().notes.group, rank(), ledger(),
                               [this](auto mine, auto all) { gather_numbers(mine, all); });
  memory->reduce = BufferPool(allocate_on(device(), MemoryKind::ReduceBuffer, ledger()));
  return memory;
}

// Calls `fn` for the ranks at this rank's place on the other hosts.
template <class Fn>
void HostsCommunicator::for_each_counterpart(Fn&& fn) const {
  for (int member = host_.group().rank(); member < world_size(); member += host_.group().size()) {
    if (member != rank()) {
      fn(member);
    }
  }
}

void HostsCommunicator::post_sends(Segment segment) {
  Gathers& mine = gathers(segment);
  attempt(described(Collective::Operation::Gather, segment), [&] {
    for_each_counterpart([&](int member) {
      mine.sends.push_back(send_to(*groups().gather, host_.shard(segment, rank()),
                                   segment_bytes(spec(segment), 1), member, mine.tag));
    });
  });
}

void HostsCommunicator::post_receives(Segment segment) {
  Gathers& mine = gathers(segment);
  const int64_t bytes = segment_bytes(spec(segment), 1);
  for_each_counterpart(
      [&](int member) { host_.data().take_pages(host_.shard(segment, member), bytes); });
  attempt(described(Collective::Operation::Gather, segment), [&] {
    for_each_counterpart([&](int member) {
      mine.receives.push_back(
          receive_from(*groups().gather, host_.shard(segment, member), bytes, member, mine.tag));
    });
  });
  mine.has_posted_receives = true;
}

void HostsCommunicator::finish_sends(Segment segment) {
  Gathers& mine = gathers(segment);
  if (!mine.sends.empty()) {
    attempt(described(Collective::Operation::Gather, segment),
            [&] { await_messages(std::exchange(mine.sends, {})); });
  }
}

void* HostsCommunicator::start_gather(Segment segment, void* /*slot*/,
                                      const GatherEvents& /*after*/) {
  Gathers& mine = gathers(segment);
  if (mine.is_in_flight) {
    give_up(segment);
  }
  finish_sends(segment);
  mine.keeps_pages = false;  // they are about to be used again
  give_back_pages();
  mine.tag = next_gather_tag_;
  next_gather_tag_ = (next_gather_tag_ + 1) % kTags;
  mine.is_in_flight = true;
  mine.has_posted_receives = false;
  awaited_.push_back(segment);
  mine.received.reset();
  mine.received = enter(segment_bytes(spec(segment), hosts() - 1), MemoryKind::Gathered, ledger());
  post_sends(segment);
  // If others of the host still read the last gather, the receives are posted later.
  if (host_.all_reached(segment, &SegmentLine::released, host_.versions(segment).read)) {
    post_receives(segment);
  }
  return host_.shard(segment, 0);
}

// Receives in the order in which gathers were started. Waits for nothing that another rank of the
// host does later, which may wait for any of these gathers.
void HostsCommunicator::receive_until(Segment segment) {
  while (std::find(awaited_.begin(), awaited_.end(), segment) != awaited_.end()) {
    const Segment oldest = awaited_.front();
    Gathers& mine = gathers(oldest);
    if (!mine.has_posted_receives) {
      host_.wait_for_all(oldest, &SegmentLine::released, host_.versions(oldest).read, "all-gather");
      post_receives(oldest);
    }
    attempt(described(Collective::Operation::Gather, oldest),
            [&] { await_messages(std::exchange(mine.receives, {})); });
    host_.line(oldest).arrived.raise_to(++mine.arrived);
    awaited_.pop_front();
  }
}

void HostsCommunicator::finish_gather(Segment segment) {
  Gathers& mine = gathers(segment);
  receive_until(segment);
  host_.await_published(segment);
  host_.wait_for_all(segment, &SegmentLine::arrived, mine.arrived, "all-gather");
  ++host_.versions(segment).read;
  mine.is_in_flight = false;
}

// Receives what others of the host need, and reads nothing itself.
void HostsCommunicator::give_up(Segment segment) {
  receive_until(segment);
  ++host_.versions(segment).read;
  gathers(segment).is_in_flight = false;
  finish_reading(segment);
}

void HostsCommunicator::finish_reading(Segment segment) {
  Gathers& mine = gathers(segment);
  host_.release(segment);
  mine.received.reset();
  mine.keeps_pages = true;
  give_back_pages();
}

// Returns the pages that this rank received itself: no other rank writes to them.
void HostsCommunicator::give_back_pages() {
  for (Segment segment = 0; segment < static_cast<Segment>(segment_gathers_.size()); ++segment) {
    Gathers& mine = gathers(segment);
    if (mine.keeps_pages &&
        host_.all_reached(segment, &SegmentLine::released, host_.versions(segment).released)) {
      mine.keeps_pages = false;
      for_each_counterpart([&](int member) {
        host_.data().give_back_pages(host_.shard(segment, member), segment_bytes(spec(segment), 1));
      });
    }
  }
}

void HostsCommunicator::forget_exchanges() {
  for (Segment segment = 0; segment < static_cast<Segment>(segment_gathers_.size()); ++segment) {
    if (gathers(segment).is_in_flight && !is_cancelled_.load(std::memory_order_acquire)) {
      give_up(segment);
    }
  }
}

}  // namespace sherd::detail
