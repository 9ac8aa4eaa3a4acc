#include "communicators/shared_memory/communicator.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>

#include "communicators/reduce_buffers.h"
#include "sherd/error.h"

namespace sherd::detail {

namespace {

constexpr int64_t kFloatBytes = sizeof(float);

const char* dtype_name(int64_t dtype) {
  return c10::toString(static_cast<c10::ScalarType>(dtype));
}

// What went wrong, for all ranks to agree on.
template <class Fn>
std::string fault_of(const Fn& fn) {
  try {
    fn();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

}  // namespace

void SharedMemoryCommunicator::attach(std::vector<SegmentSpec> segments, c10::Device /*device*/,
                                      std::shared_ptr<MemoryLedger> ledger) {
  segments_ = std::move(segments);
  states_.resize(segments_.size());
  layout_ = SharedLayout(segments_, world_size());
  group_->agree_on_fault(fault_of([&] {
    if (rank() == 0) {
      data_.set_size(layout_.bytes());
    }
  }));
  group_->agree_on_fault(fault_of([&] { map_and_populate(); }));
  for (const SegmentSpec& spec : segments_) {
    pieces_.emplace_back(segment_bytes(spec, 1), spec.shard_kind, ledger);
  }
  buffers_ = std::make_unique<SharedReduceBuffers>(layout_, rank(), data_, std::move(ledger));
}

void SharedMemoryCommunicator::map_and_populate() {
  data_.map(layout_.bytes());
  for (Segment segment = 0; segment < static_cast<Segment>(segments_.size()); ++segment) {
    data_.populate(travelling_shard(segment), segment_bytes(spec(segment), 1));
  }
}

SegmentLine& SharedMemoryCommunicator::line(Segment segment, int member) const {
  return *reinterpret_cast<SegmentLine*>(data_.data() + layout_.line(segment, member));
}

void* SharedMemoryCommunicator::travelling_shard(Segment segment) {
  return data_.data() + layout_.pieces(segment) + segment_bytes(spec(segment), 1) * rank();
}

void SharedMemoryCommunicator::begin_update(Segment segment) {
  const SegmentState& mine = state(segment);
  TORCH_INTERNAL_ASSERT(mine.released == mine.read, "unit '", spec(segment).name,
                        "' is to be updated while it is gathered here");
  // What the others read of this version is what this rank has read: all run the same program.
  group_->wait_for_all([&](int member) -> SharedCounter& { return line(segment, member).released; },
                       mine.read, {"optimizer step", &spec(segment).name});
}

void SharedMemoryCommunicator::publish(Segment segment) {
  line(segment, rank()).published.raise_to(++state(segment).published);
}

void* SharedMemoryCommunicator::gather(Segment segment, void* /*slot*/) {
  ++counts_.gathers;
  state(segment).gather = Gather::Started;
  return data_.data() + layout_.pieces(segment);
}

void SharedMemoryCommunicator::wait_gather(Segment segment) {
  SegmentState& mine = state(segment);
  if (mine.gather != Gather::Started) {
    return;
  }
  sum_what_lies_ready();
  group_->wait_for_all(
      [&](int member) -> SharedCounter& { return line(segment, member).published; }, mine.published,
      {"all-gather", &spec(segment).name});
  ++mine.read;
  mine.gather = Gather::Read;
}

void SharedMemoryCommunicator::release(Segment segment) {
  SegmentState& mine = state(segment);
  if (std::exchange(mine.gather, Gather::None) == Gather::Read) {
    line(segment, rank()).released.raise_to(++mine.released);
  }
}

void* SharedMemoryCommunicator::acquire_reduce_buffer(Segment segment,
                                                      const Reduction& /*target*/) {
  while (pending_.size() >= SharedGroup::kReductions) {
    finish_oldest();
  }
  state(segment).acquired = buffers_->acquire(segment);
  return data_.data() + state(segment).acquired;
}

void SharedMemoryCommunicator::release_reduce_buffer(Segment segment) {
  buffers_->release(std::exchange(state(segment).acquired, 0));
}

SharedMemoryCommunicator::Pending SharedMemoryCommunicator::make_pending(Segment segment,
                                                                         const Reduction& target) {
  const int64_t numel = spec(segment).shard_numel;
  Pending pending{segment, target, 0, next_number_, 0, numel, 1};
  if (target.source == nullptr) {
    pending.gradients = std::exchange(state(segment).acquired, 0);
  } else {
    // The engine's own gradients go through a buffer that may be smaller than they are, in parts.
    pending.gradients = buffers_->acquire(segment);
    const int64_t room = layout_.reduce_buffer_bytes(segment) / kFloatBytes / world_size();
    pending.part_numel = std::min(numel, room);
    pending.parts = static_cast<uint32_t>((numel + pending.part_numel - 1) / pending.part_numel);
  }
  uint32_t& parts_so_far = parts_so_far_[static_cast<size_t>(next_number_)];
  pending.base = parts_so_far;
  parts_so_far += pending.parts;
  next_number_ = (next_number_ + 1) % SharedGroup::kReductions;
  return pending;
}

void SharedMemoryCommunicator::reduce(Segment segment, const Reduction& target) {
  ++counts_.reductions;
  counts_.bytes_sent += reduced_bytes(spec(segment), target) * (world_size() - 1);
  while (pending_.size() >= SharedGroup::kReductions) {
    finish_oldest();
  }
  pending_.push_back(make_pending(segment, target));
  post_part(pending_.back());
  sum_what_lies_ready();
}

void SharedMemoryCommunicator::post_part(Pending& pending) {
  SharedGroup::Reduction& mine = group_->reduction(rank(), pending.number);
  if (pending.target.source != nullptr) {
    copy_part(pending);
  }
  if (pending.posted == 0) {
    // Nobody reads those of the last reduction of this number: all have summed it, and looked
    // first.
    mine.gradients = pending.gradients;
    mine.segment = pending.segment;
    mine.dtype = static_cast<int64_t>(reduced_dtype(spec(pending.segment), pending.target));
  }
  mine.posted.raise_to(pending.base + ++pending.posted);
}

void SharedMemoryCommunicator::copy_part(const Pending& pending) const {
  const int64_t numel = spec(pending.segment).shard_numel;
  const int64_t first = pending.part_numel * pending.posted;
  const int64_t count = std::min(pending.part_numel, numel - first);
  auto* buffer = reinterpret_cast<float*>(data_.data() + pending.gradients);
  for (int member = 0; member < world_size(); ++member) {
    if (member != rank()) {  // what this rank adds itself it reads where it is
      std::memcpy(buffer + member * pending.part_numel,
                  pending.target.source + member * numel + first,
                  static_cast<size_t>(count * kFloatBytes));
    }
  }
}

bool SharedMemoryCommunicator::reached(SharedCounter SharedGroup::Reduction::*counter,
                                       const Pending& pending, uint32_t parts, bool wait) const {
  const auto counter_of = [&](int member) -> SharedCounter& {
    return group_->reduction(member, pending.number).*counter;
  };
  if (wait) {
    group_->wait_for_all(counter_of, pending.base + parts,
                         {"reduction", &spec(pending.segment).name});
  }
  return wait || group_->all_reached(counter_of, pending.base + parts);
}

// Goes as far as the others let it; to the end where it may wait for them.
bool SharedMemoryCommunicator::advance(Pending& pending, bool wait) {
  using Counters = SharedGroup::Reduction;
  while (pending.summed < pending.parts) {
    if (pending.posted == pending.summed) {  // the next part goes where all have read this one
      if (!reached(&Counters::summed, pending, pending.summed, wait)) {
        return false;
      }
      post_part(pending);
    }
    if (!reached(&Counters::posted, pending, pending.posted, wait)) {
      return false;
    }
    sum_part(pending);
  }
  return true;
}

void SharedMemoryCommunicator::check_same_gradients(const Pending& pending) const {
  const std::string& unit = spec(pending.segment).name;
  const auto refuse = [&](int member, const std::string& what) {
    throw Error(ExitCode::PeerLost, "reduction of unit '" + unit + "': rank " +
                                        std::to_string(group_->rank_of_world(member)) + what);
  };
  const SharedGroup::Reduction& mine = group_->reduction(rank(), pending.number);
  for (int member = 0; member < world_size(); ++member) {
    const SharedGroup::Reduction& other = group_->reduction(member, pending.number);
    if (other.segment != pending.segment) {
      refuse(member, " reduces unit '" + spec(static_cast<Segment>(other.segment)).name +
                         "'. Every rank must run the same units in the same order.");
    }
    if (other.dtype != mine.dtype) {
      refuse(member, std::string(" reduces ") + dtype_name(other.dtype) + ", this rank " +
                         dtype_name(mine.dtype) +
                         ": one of them has accumulated a micro-batch without communication and "
                         "the other has not. Every rank must synchronise the same micro-batches.");
    }
  }
}

void SharedMemoryCommunicator::sum_part(Pending& pending) {
  check_same_gradients(pending);
  const SegmentSpec& segment = spec(pending.segment);
  const c10::ScalarType dtype = reduced_dtype(segment, pending.target);
  const auto element = static_cast<int64_t>(c10::elementSize(dtype));
  const int64_t first = pending.part_numel * pending.summed;
  const int64_t count = std::min(pending.part_numel, segment.shard_numel - first);
  std::vector<const void*> sources;
  for (int member = 0; member < world_size(); ++member) {
    const int64_t gradients = group_->reduction(member, pending.number).gradients;
    sources.push_back(data_.data() + gradients + pending.part_numel * rank() * element);
  }
  if (pending.target.source != nullptr) {
    sources[static_cast<size_t>(rank())] =
        pending.target.source + segment.shard_numel * rank() + first;
  }
  sum_piece(pending.target, dtype, sources, first, count, c10::kCPU);
  group_->reduction(rank(), pending.number).summed.raise_to(pending.base + ++pending.summed);
}

void SharedMemoryCommunicator::sum_what_lies_ready() {
  for (Pending& pending : pending_) {
    if (!advance(pending, /*wait=*/false)) {
      return;
    }
  }
}

void SharedMemoryCommunicator::finish_oldest() {
  Pending& oldest = pending_.front();
  static_cast<void>(advance(oldest, /*wait=*/true));
  static_cast<void>(reached(&SharedGroup::Reduction::summed, oldest, oldest.parts, /*wait=*/true));
  buffers_->release(oldest.gradients);
  pending_.pop_front();
}

void SharedMemoryCommunicator::finish_reductions() {
  while (!pending_.empty()) {
    finish_oldest();
  }
}

void SharedMemoryCommunicator::abandon() {
  if (buffers_ == nullptr) {
    return;  // nothing was attached
  }
  for (Segment segment = 0; segment < static_cast<Segment>(segments_.size()); ++segment) {
    release(segment);
  }
  finish_reductions();
  for (SegmentState& mine : states_) {
    mine.acquired = 0;
  }
  buffers_->release_all();
}

void SharedMemoryCommunicator::all_reduce(std::span<double> values, ReduceOp op) {
  ++counts_.all_reduces;
  group_->all_reduce(values, op);
}

void SharedMemoryCommunicator::barrier() {
  all_reduce({}, ReduceOp::Sum);
}

}  // namespace sherd::detail
