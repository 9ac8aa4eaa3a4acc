#include "comm/shared_memory.h"

#include <algorithm>
#include <array>
#include <cstring>

#include <c10/util/Exception.h>

#include "sherd/error.h"

namespace sherd::detail {

namespace {

constexpr int64_t kFloatBytes = sizeof(float);
constexpr int64_t kPageBytes = 4096;
constexpr int64_t kLineBytes = 64;

int64_t round_up(int64_t value, int64_t to) {
  return (value + to - 1) / to * to;
}

// Large ranges begin at pages, so that ranks touch their own. Small ones may share a page.
int64_t place(int64_t& end, int64_t bytes) {
  const int64_t begin = round_up(end, bytes < kPageBytes ? kLineBytes : kPageBytes);
  end = begin + bytes;
  return begin;
}

// All ranks of a group throw Error(Unavailable) if `fn` fails on one: its own error there.
template <class Fn>
void try_on_all_ranks(const RankGroup& ranks, const HostMemory::GatherNumbers& gather_numbers,
                      const Fn& fn) {
  std::string fault;
  try {
    fn();
  } catch (const Error& error) {
    fault = error.what();
  }
  const double mine = fault.empty() ? 0 : 1;
  std::vector<double> faulty(static_cast<size_t>(ranks.size));
  gather_numbers({&mine, 1}, faulty);
  const auto found = std::find(faulty.begin(), faulty.end(), 1.0);
  if (found != faulty.end()) {
    const int rank = ranks.rank_at(static_cast<int>(found - faulty.begin()));
    throw Error(ExitCode::Unavailable,
                fault.empty() ? "rank " + std::to_string(rank) +
                                    " cannot allocate the shared memory of this model; its own "
                                    "message says what to try."
                              : fault);
  }
}

}  // namespace

void HostMemory::plan(int world_size) {
  offsets_.clear();
  reduce_ranges_.clear();
  const auto lines = static_cast<int64_t>(segments_->size()) * group_->size();
  int64_t end = lines * static_cast<int64_t>(sizeof(SegmentLine));
  for (const SegmentSpec& spec : *segments_) {
    offsets_.push_back(place(end, segment_bytes(spec, world_size)));
  }
  const int64_t reduce_begin = round_up(end, kPageBytes);
  int64_t reduce_end = 0;  // of one rank's buffers
  if (world_size == group_->size()) {
    const auto add_buffers = [&](int64_t count, int64_t bytes) {
      for (int64_t i = 0; bytes > 0 && i < count; ++i) {
        reduce_ranges_.push_back({place(reduce_end, bytes), bytes});
      }
    };
    // As many as could be in use at once: one per block and those in flight.
    const auto blocks =
        std::count_if(segments_->begin(), segments_->end(),
                      [](const SegmentSpec& spec) { return spec.trainable && !spec.is_root; });
    add_buffers(blocks + SharedGroup::kReductions, largest_block_bytes(*segments_, world_size));
    for (const SegmentSpec& spec : *segments_) {
      if (spec.trainable && spec.is_root) {
        add_buffers(SharedGroup::kReductions, segment_bytes(spec, world_size));
      }
    }
  }
  const int64_t reduce_bytes_of_a_rank = round_up(reduce_end, kPageBytes);
  for (Range& range : reduce_ranges_) {
    range.offset += reduce_begin + reduce_bytes_of_a_rank * group_->rank();
  }
  bytes_ = std::max(reduce_begin + reduce_bytes_of_a_rank * world_size, kPageBytes);
}

std::shared_ptr<CommunicatorMemory> HostMemory::allocate(
    const std::vector<SegmentSpec>& segments, const RankGroup& ranks, int rank,
    const std::shared_ptr<MemoryLedger>& ledger, const GatherNumbers& gather_numbers) {
  segments_ = &segments;
  versions_.resize(segments.size());
  plan(ranks.size);
  try_on_all_ranks(ranks, gather_numbers, [&] {
    if (group_->rank() == 0) {
      data_.set_size(bytes_);
    }
  });
  const auto count = static_cast<Segment>(segments.size());
  try_on_all_ranks(ranks, gather_numbers, [&] {
    data_.map(bytes_);
    for (Segment segment = 0; segment < count; ++segment) {
      data_.populate(shard(segment, rank), segment_bytes(spec(segment), 1));
    }
  });
  auto memory = std::make_shared<CommunicatorMemory>();
  memory->reduce_bytes = reduce_buffer_bytes(segments, ranks.size);
  for (Segment segment = 0; segment < count; ++segment) {
    shards_in_ledger_.push_back(
        enter(segment_bytes(spec(segment), 1), spec(segment).shard_kind, ledger));
    memory->travelling.push_back(shard(segment, rank));
  }
  return memory;
}

BufferPool HostMemory::reduce_buffers(std::shared_ptr<MemoryLedger> ledger) const {
  return BufferPool([this, ledger = std::move(ledger),
                     unused = reduce_ranges_](int64_t bytes) mutable {
    const auto next = std::ranges::find(unused, bytes, &Range::bytes);
    TORCH_INTERNAL_ASSERT(next != unused.end(), "more reduce buffers are in use than there are");
    char* const data = data_.data() + next->offset;
    data_.populate(data, bytes);
    unused.erase(next);
    const LedgerEntry entry = enter(bytes, MemoryKind::ReduceBuffer, ledger);
    return std::shared_ptr<void>(entry, data);
  });
}

namespace {

/// A gather moves nothing: it waits for the others' `published`, and ends with this rank's
/// `released`. Gradients are written to shared memory too, and each rank sums its own shard of
/// them: at the next call that finds them complete, at the latest when their buffers are needed.
class SharedMemoryCommunicator final : public BufferedCommunicator {
 public:
  explicit SharedMemoryCommunicator(HostMemory memory) : host_(std::move(memory)) {}

  [[nodiscard]] int rank() const override { return host_.group().rank(); }
  [[nodiscard]] int world_size() const override { return host_.group().size(); }
  [[nodiscard]] std::string transport() const override { return "shared memory"; }
  [[nodiscard]] bool gathers_in_place() const override { return true; }

 private:
  /// A shared buffer may be smaller than the engine's own gradients: these come in parts.
  struct Posted : Exchange {
    int number = 0;          ///< which of the two in flight
    uint32_t base = 0;       ///< parts of earlier reductions of this number
    int64_t part_numel = 0;  ///< of a shard
    uint32_t parts = 1;
    uint32_t posted = 0;
    uint32_t summed = 0;
  };
  [[nodiscard]] std::shared_ptr<CommunicatorMemory> allocate() override {
    auto memory = host_.allocate(segments(), host_.group().ranks(), rank(), ledger(),
                                 [this](auto mine, auto all) { gather_numbers(mine, all); });
    memory->reduce = host_.reduce_buffers(ledger());
    return memory;
  }
  void* start_gather(Segment segment, void* /*slot*/, const GatherEvents& /*after*/) override {
    return host_.shard(segment, 0);
  }
  void finish_gather(Segment segment) override {
    sum_complete_parts();
    host_.await_published(segment);
    ++host_.versions(segment).read;
  }
  void finish_reading(Segment segment) override { host_.release(segment); }
  void await_readers(Segment segment) override { host_.await_readers(segment); }
  void show_published(Segment segment) override { host_.publish(segment); }
  [[nodiscard]] std::unique_ptr<Exchange> make_exchange() override {
    return std::make_unique<Posted>();
  }
  void start_exchange(Exchange& exchange) override {
    auto& mine = static_cast<Posted&>(exchange);
    plan_parts(mine);
    post_part(mine);
    sum_complete_parts();
  }
  void finish_exchange(Exchange& exchange) override {
    auto& mine = static_cast<Posted&>(exchange);
    static_cast<void>(advance(mine, /*wait=*/true));
    static_cast<void>(reached(&SharedGroup::Reduction::summed, mine, mine.parts, /*wait=*/true));
  }
  void gather_numbers(std::span<const double> mine, std::span<double> all) override {
    host_.group().gather_numbers(mine, all);
  }
  void interrupt(const std::string& why) override { host_.group().cancel(why); }
  [[nodiscard]] int rank_of_world(int member) const override {
    return host_.group().ranks().rank_at(member);
  }

  void plan_parts(Posted& posted) {
    const Segment segment = posted.segment;
    const int64_t numel = spec(segment).shard_numel;
    posted.part_numel = numel;
    if (posted.target.source != nullptr) {  // the engine's own sums are copied to where all read
      const int64_t room =
          memory()->reduce_bytes[static_cast<size_t>(segment)] / kFloatBytes / world_size();
      posted.part_numel = std::min(numel, room);
      posted.parts = static_cast<uint32_t>((numel + posted.part_numel - 1) / posted.part_numel);
      posted.gradients = memory()->acquire(segment);
      posted.is_acquired = true;
    }
    posted.number = next_number_;
    uint32_t& parts_so_far = parts_so_far_[static_cast<size_t>(next_number_)];
    posted.base = parts_so_far;
    parts_so_far += posted.parts;
    next_number_ = (next_number_ + 1) % SharedGroup::kReductions;
  }
  void post_part(Posted& posted) {
    SharedGroup::Reduction& mine = host_.group().reduction(rank(), posted.number);
    if (posted.target.source != nullptr) {
      copy_part(posted);
    }
    if (posted.posted == 0) {
      // Nobody reads those of the last reduction of this number: all have summed it, and looked
      // first.
      mine.gradients = static_cast<const char*>(posted.gradients) - host_.data().data();
      mine.identity = posted.identity;
    }
    mine.posted.raise_to(posted.base + ++posted.posted);
  }
  void copy_part(const Posted& posted) const {
    const int64_t numel = spec(posted.segment).shard_numel;
    const int64_t first = posted.part_numel * posted.posted;
    const int64_t count = std::min(posted.part_numel, numel - first);
    auto* buffer = static_cast<float*>(posted.gradients);
    for (int member = 0; member < world_size(); ++member) {
      if (member != rank()) {  // this rank reads its own shard in place
        std::memcpy(buffer + member * posted.part_numel,
                    posted.target.source + member * numel + first,
                    static_cast<size_t>(count * kFloatBytes));
      }
    }
  }
  // Proceeds as far as the other ranks have; to the end if it may wait for them.
  [[nodiscard]] bool advance(Posted& posted, bool wait) {
    using Counters = SharedGroup::Reduction;
    while (posted.summed < posted.parts) {
      if (posted.posted == posted.summed) {  // the next part replaces this one, which all have read
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
  [[nodiscard]] bool reached(SharedCounter SharedGroup::Reduction::*counter, const Posted& posted,
                             uint32_t parts, bool wait) const {
    const auto counter_of = [&](int member) -> SharedCounter& {
      return host_.group().reduction(member, posted.number).*counter;
    };
    if (wait) {
      host_.group().wait_for_all(counter_of, posted.base + parts,
                                 {"reduction", &spec(posted.segment).name});
    }
    return wait || host_.group().all_reached(counter_of, posted.base + parts);
  }
  void sum_part(Posted& posted) {
    const SegmentSpec& segment = spec(posted.segment);
    std::vector<Identity> identities;
    for (int member = 0; member < world_size(); ++member) {
      identities.push_back(host_.group().reduction(member, posted.number).identity);
    }
    check_identities(posted, identities);
    const auto element = static_cast<int64_t>(c10::elementSize(posted.dtype));
    const int64_t first = posted.part_numel * posted.summed;
    const int64_t count = std::min(posted.part_numel, segment.shard_numel - first);
    std::vector<const void*> sources;
    for (int member = 0; member < world_size(); ++member) {
      const int64_t gradients = host_.group().reduction(member, posted.number).gradients;
      sources.push_back(host_.data().data() + gradients + posted.part_numel * rank() * element);
    }
    if (posted.target.source != nullptr) {
      sources[static_cast<size_t>(rank())] =
          posted.target.source + segment.shard_numel * rank() + first;
    }
    add_piece(posted, sources, first, count);
    host_.group().reduction(rank(), posted.number).summed.raise_to(posted.base + ++posted.summed);
  }
  void sum_complete_parts() {
    for (const auto& exchange : exchanges()) {
      if (!advance(static_cast<Posted&>(*exchange), /*wait=*/false)) {
        return;
      }
    }
  }

  HostMemory host_;
  int next_number_ = 0;
  std::array<uint32_t, SharedGroup::kReductions> parts_so_far_{};
};

}  // namespace

std::unique_ptr<Communicator> make_shared_memory_communicator(HostMemory memory) {
  return std::make_unique<SharedMemoryCommunicator>(std::move(memory));
}

}  // namespace sherd::detail
