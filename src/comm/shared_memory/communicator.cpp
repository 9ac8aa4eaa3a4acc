#include "comm/shared_memory/communicator.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "comm/communicator_memory.h"
#include "sherd/error.h"

namespace sherd::detail {

namespace {

constexpr int64_t kFloatBytes = sizeof(float);

}  // namespace

std::shared_ptr<CommunicatorMemory> SharedMemoryCommunicator::allocate() {
  versions_.resize(segments().size());
  layout_ = SharedLayout(segments(), world_size());
  group_->agree_on_fault(fault_of([&] {
    if (rank() == 0) {
      data_.set_size(layout_.bytes());
    }
  }));
  group_->agree_on_fault(fault_of([&] { map_and_populate(); }));
  auto memory = std::make_shared<CommunicatorMemory>();
  for (Segment segment = 0; segment < static_cast<Segment>(segments().size()); ++segment) {
    pieces_.emplace_back(segment_bytes(spec(segment), 1), spec(segment).shard_kind, ledger());
    memory->travelling.push_back(piece(segment));
  }
  memory->reduce = std::make_unique<SharedReduceBuffers>(layout_, rank(), data_, ledger());
  return memory;
}

void SharedMemoryCommunicator::map_and_populate() {
  data_.map(layout_.bytes());
  for (Segment segment = 0; segment < static_cast<Segment>(segments().size()); ++segment) {
    data_.populate(piece(segment), segment_bytes(spec(segment), 1));
  }
}

char* SharedMemoryCommunicator::piece(Segment segment) const {
  return data_.data() + layout_.pieces(segment) + segment_bytes(spec(segment), 1) * rank();
}

SegmentLine& SharedMemoryCommunicator::line(Segment segment, int member) const {
  return *reinterpret_cast<SegmentLine*>(data_.data() + layout_.line(segment, member));
}

void SharedMemoryCommunicator::await_readers(Segment segment) {
  // What the others read of this version is what this rank has read: all run the same program.
  group_->wait_for_all([&](int member) -> SharedCounter& { return line(segment, member).released; },
                       versions(segment).read, {"optimizer step", &spec(segment).name});
}

void SharedMemoryCommunicator::show_published(Segment segment) {
  line(segment, rank()).published.raise_to(++versions(segment).published);
}

void* SharedMemoryCommunicator::start_gather(Segment segment, void* /*slot*/,
                                             const GatherEvents& /*after*/) {
  return data_.data() + layout_.pieces(segment);
}

void SharedMemoryCommunicator::finish_gather(Segment segment) {
  sum_what_lies_ready();
  group_->wait_for_all(
      [&](int member) -> SharedCounter& { return line(segment, member).published; },
      versions(segment).published, {"all-gather", &spec(segment).name});
  ++versions(segment).read;
}

void SharedMemoryCommunicator::finish_reading(Segment segment) {
  line(segment, rank()).released.raise_to(++versions(segment).released);
}

std::unique_ptr<BufferedCommunicator::Exchange> SharedMemoryCommunicator::make_exchange() {
  return std::make_unique<Posted>();
}

void SharedMemoryCommunicator::plan_parts(Posted& posted) {
  const Segment segment = posted.segment;
  const int64_t numel = spec(segment).shard_numel;
  posted.part_numel = numel;
  if (posted.target.source != nullptr) {  // what is the engine's own is copied to where all read
    const int64_t room = layout_.reduce_buffer_bytes(segment) / kFloatBytes / world_size();
    posted.part_numel = std::min(numel, room);
    posted.parts = static_cast<uint32_t>((numel + posted.part_numel - 1) / posted.part_numel);
    posted.gradients = memory()->reduce->acquire(segment);
    posted.is_acquired = true;
  }
  posted.number = next_number_;
  uint32_t& parts_so_far = parts_so_far_[static_cast<size_t>(next_number_)];
  posted.base = parts_so_far;
  parts_so_far += posted.parts;
  next_number_ = (next_number_ + 1) % SharedGroup::kReductions;
}

void SharedMemoryCommunicator::start_exchange(Exchange& exchange) {
  auto& mine = static_cast<Posted&>(exchange);
  plan_parts(mine);
  post_part(mine);
  sum_what_lies_ready();
}

void SharedMemoryCommunicator::post_part(Posted& posted) {
  SharedGroup::Reduction& mine = group_->reduction(rank(), posted.number);
  if (posted.target.source != nullptr) {
    copy_part(posted);
  }
  if (posted.posted == 0) {
    // Nobody reads those of the last reduction of this number: all have summed it, and looked
    // first.
    mine.gradients = static_cast<const char*>(posted.gradients) - data_.data();
    mine.identity = posted.identity;
  }
  mine.posted.raise_to(posted.base + ++posted.posted);
}

void SharedMemoryCommunicator::copy_part(const Posted& posted) const {
  const int64_t numel = spec(posted.segment).shard_numel;
  const int64_t first = posted.part_numel * posted.posted;
  const int64_t count = std::min(posted.part_numel, numel - first);
  auto* buffer = static_cast<float*>(posted.gradients);
  for (int member = 0; member < world_size(); ++member) {
    if (member != rank()) {  // what this rank adds itself it reads where it is
      std::memcpy(buffer + member * posted.part_numel,
                  posted.target.source + member * numel + first,
                  static_cast<size_t>(count * kFloatBytes));
    }
  }
}

bool SharedMemoryCommunicator::reached(SharedCounter SharedGroup::Reduction::*counter,
                                       const Posted& posted, uint32_t parts, bool wait) const {
  const auto counter_of = [&](int member) -> SharedCounter& {
    return group_->reduction(member, posted.number).*counter;
  };
  if (wait) {
    group_->wait_for_all(counter_of, posted.base + parts,
                         {"reduction", &spec(posted.segment).name});
  }
  return wait || group_->all_reached(counter_of, posted.base + parts);
}

// Proceeds as far as the others have come; to the end where it may wait for them.
bool SharedMemoryCommunicator::advance(Posted& posted, bool wait) {
  using Counters = SharedGroup::Reduction;
  while (posted.summed < posted.parts) {
    if (posted.posted == posted.summed) {  // the next part goes where all have read this one
      if (!reached(&Counters::summed, posted, posted.summed, wait)) {
        return false;
      }
      post_part(posted);
    }
    if (!reached(&Counters::posted, posted, posted.posted, wait)) {
      return false;
    }
    sum_part(posted);
  }
  return true;
}

void SharedMemoryCommunicator::sum_part(Posted& posted) {
  const SegmentSpec& segment = spec(posted.segment);
  std::vector<Identity> identities;
  for (int member = 0; member < world_size(); ++member) {
    identities.push_back(group_->reduction(member, posted.number).identity);
  }
  check_identities(posted, identities);
  const auto element = static_cast<int64_t>(c10::elementSize(posted.dtype));
  const int64_t first = posted.part_numel * posted.summed;
  const int64_t count = std::min(posted.part_numel, segment.shard_numel - first);
  std::vector<const void*> sources;
  for (int member = 0; member < world_size(); ++member) {
    const int64_t gradients = group_->reduction(member, posted.number).gradients;
    sources.push_back(data_.data() + gradients + posted.part_numel * rank() * element);
  }
  if (posted.target.source != nullptr) {
    sources[static_cast<size_t>(rank())] =
        posted.target.source + segment.shard_numel * rank() + first;
  }
  add_piece(posted, sources, first, count);
  group_->reduction(rank(), posted.number).summed.raise_to(posted.base + ++posted.summed);
}

void SharedMemoryCommunicator::sum_what_lies_ready() {
  for (const auto& exchange : exchanges()) {
    if (!advance(static_cast<Posted&>(*exchange), /*wait=*/false)) {
      return;
    }
  }
}

void SharedMemoryCommunicator::finish_exchange(Exchange& exchange) {
  auto& mine = static_cast<Posted&>(exchange);
  static_cast<void>(advance(mine, /*wait=*/true));
  static_cast<void>(reached(&SharedGroup::Reduction::summed, mine, mine.parts, /*wait=*/true));
}

void SharedMemoryCommunicator::gather_numbers(std::span<const double> mine, std::span<double> all) {
  group_->gather_numbers(mine, all);
}

}  // namespace sherd::detail
