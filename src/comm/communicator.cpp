#include "sherd/communicator.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <functional>
#include <numeric>
#include <utility>

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include "comm/buffers.h"
#include "kernels/shard_math.h"
#include "sherd/error.h"
#include "storage/movable_storage.h"

namespace sherd {

using detail::segment_bytes;
using Operation = Collective::Operation;
using Observer = CollectiveObserver;

namespace {

constexpr std::uint64_t kHistoryFactor = 0xD1342543DE82EF95U;  // odd: it has an inverse

/// [Note: Ranks out of step]
/// Process groups match messages by their order alone. So each rank keeps a number that hashes all
/// its collectives so far. It is sent with the gradients of each unit, with every all-reduce, one
/// of which comes before each update, and over Gloo with every gather: a difference is reported
/// before the values are used. Over NCCL ranks compare it on the host before each update
/// (Gradients::agree_on_use()).
///
/// The number is a polynomial in a factor, so that the operations of a captured graph can be added
/// at once (Communicator::count_again()).
void add_to_history(Communicator::Counts& counts, Operation operation, int64_t what, int64_t how) {
  const uint64_t words[] = {static_cast<uint64_t>(operation), static_cast<uint64_t>(what),
                            static_cast<uint64_t>(how)};
  uint64_t mixed = 0;
  for (const uint64_t word : words) {
    mixed = (mixed ^ word) * 0x9E3779B97F4A7C15U;  // odd, so that no bit is lost
    mixed ^= mixed >> 29U;
  }
  counts.history = counts.history * kHistoryFactor + mixed;
  ++counts.operations;
}

// Newton's method: each step doubles the number of correct bits; an odd number has three.
constexpr std::uint64_t inverse(std::uint64_t odd) {
  std::uint64_t result = odd;
  for (int bits = 3; bits < 64; bits *= 2) {
    result *= 2 - odd * result;
  }
  return result;
}
static_assert(inverse(kHistoryFactor) * kHistoryFactor == 1);

// The factor of a history after so many operations, or of its inverse.
std::uint64_t factor_of(std::int64_t operations) {
  std::uint64_t base = operations < 0 ? inverse(kHistoryFactor) : kHistoryFactor;
  std::uint64_t result = 1;
  for (auto left = static_cast<std::uint64_t>(std::abs(operations)); left > 0; left /= 2) {
    result *= left % 2 == 1 ? base : 1;
    base *= base;
  }
  return result;
}

// The dtype in which a segment's gradients are reduced.
c10::ScalarType reduced_dtype(const SegmentSpec& spec, const Communicator::Reduction& target) {
  return target.source == nullptr ? spec.dtype : c10::ScalarType::Float;
}

}  // namespace

const char* name_of(Operation operation) {
  // In the order of the enumeration.
  constexpr std::array kNames{
      "attach",  "all-gather",           "reduction",           "optimizer step", "all-reduce",
      "barrier", "connecting the ranks", "all-gather of texts", "broadcast",      "send"};
  static_assert(kNames.size() == static_cast<size_t>(Operation::Send) + 1);
  return kNames.at(static_cast<size_t>(operation));
}

void Communicator::all_reduce_on_device(const at::Tensor& values, ReduceOp op) {
  const at::Tensor on_host = values.cpu();
  all_reduce({on_host.mutable_data_ptr<double>(), static_cast<size_t>(on_host.numel())}, op);
  values.copy_(on_host);
}

Communicator::Counts Communicator::Counts::since(const Counts& before) const noexcept {
  return {gathers - before.gathers,
          reductions - before.reductions,
          replications - before.replications,
          all_reduces - before.all_reduces,
          bytes_sent - before.bytes_sent,
          operations - before.operations,
          history - before.history * factor_of(operations - before.operations)};
}

void Communicator::count_again(const Counts& captured) noexcept {
  counts_.gathers += captured.gathers;
  counts_.reductions += captured.reductions;
  counts_.replications += captured.replications;
  counts_.all_reduces += captured.all_reduces;
  counts_.bytes_sent += captured.bytes_sent;
  counts_.operations += captured.operations;
  counts_.history = counts_.history * factor_of(captured.operations) + captured.history;
}

void detail::throw_out_of_step(const std::string& at, int rank, int other) {
  throw Error(ExitCode::RanksDisagree,
              at + ": ranks are out of step. Rank " + std::to_string(other) +
                  " has run other units, or in another order, than rank " + std::to_string(rank) +
                  ". Every rank must run the same units in the same order; "
                  "ShardOptions::debug names the first difference.");
}

BufferedCommunicator::BufferedCommunicator() = default;
BufferedCommunicator::~BufferedCommunicator() = default;

std::unique_ptr<BufferedCommunicator::Exchange> BufferedCommunicator::make_exchange() {
  return std::make_unique<Exchange>();
}

std::shared_ptr<detail::CommunicatorMemory> BufferedCommunicator::allocate() {
  auto memory = std::make_shared<detail::CommunicatorMemory>();
  for (const SegmentSpec& spec : segments_) {
    if (spec.piece_in_slot && takes_pieces_in_slots()) {
      memory->travelling.push_back(nullptr);
      continue;
    }
    if (spec.piece != nullptr && takes_pieces()) {
      memory->travelling.push_back(spec.piece);
      continue;
    }
    memory->shards.emplace_back(segment_bytes(spec, 1), spec.shard_kind, ledger_, device_);
    memory->travelling.push_back(memory->shards.back().data());
  }
  memory->reduce_bytes = detail::reduce_buffer_bytes(segments_, world_size());
  memory->reduce =
      detail::BufferPool(detail::allocate_on(device_, MemoryKind::ReduceBuffer, ledger_));
  return memory;
}

void BufferedCommunicator::attach(std::vector<SegmentSpec> segments, c10::Device device,
                                  std::shared_ptr<MemoryLedger> ledger) {
  check_not_cancelled();
  tell(&Observer::started, Operation::Attach, -1, 0);
  segments_ = std::move(segments);
  device_ = device;
  ledger_ = std::move(ledger);
  states_.resize(segments_.size());
  block_piece_bytes_ = detail::largest_block_bytes(segments_, 1);
  auto memory = allocate();
  receive_pool_ = std::make_unique<detail::BufferPool>(
      detail::allocate_on(device_, MemoryKind::ReceiveBuffer, ledger_), most_received_bytes());
  memory_ = std::move(memory);
  share_memory();
  tell(&Observer::ended, Operation::Attach, -1, 0);
}

// Reductions in flight are of two segments, or of one twice: the pool makes the second wait then.
int64_t BufferedCommunicator::most_received_bytes() const {
  std::vector<int64_t> bytes;
  for (const SegmentSpec& spec : segments_) {
    if (spec.trainable) {  // fp32 if micro-batches accumulated
      bytes.push_back(
          std::max(receive_bytes(spec, spec.dtype), receive_bytes(spec, c10::ScalarType::Float)));
    }
  }
  const size_t count = std::min(detail::kReductionsInFlight, bytes.size());
  const auto end = bytes.begin() + static_cast<std::ptrdiff_t>(count);
  std::partial_sort(bytes.begin(), end, bytes.end(), std::greater<>());
  return std::accumulate(bytes.begin(), end, int64_t{0});
}

std::string BufferedCommunicator::described(Operation operation, Segment segment) const {
  return std::string(name_of(operation)) + " of unit '" + spec(segment).name + "'";
}

Collective BufferedCommunicator::collective(Operation operation, Segment segment,
                                            int64_t bytes) const {
  const int ranks = world_size();
  const int stride = ranks > 1 ? rank_of_world(1) - rank_of_world(0) : 1;
  return {operation, segment, segment < 0 ? std::string() : spec(segment).name,
          bytes,     ranks,   stride};
}

void BufferedCommunicator::tell(void (Observer::*event)(const Collective&), Operation operation,
                                Segment segment, int64_t bytes) const {
  if (observer_ != nullptr) {
    (observer_.get()->*event)(collective(operation, segment, bytes));
  }
}

void BufferedCommunicator::check_not_cancelled() const {
  if (cancelled_.load(std::memory_order_acquire)) {
    const std::lock_guard lock(why_mutex_);
    throw Error(ExitCode::PeerLost,
                "exchange between ranks (" + transport() + ") was cancelled: " + why_);
  }
}

void BufferedCommunicator::cancel(const std::string& why) {
  {
    const std::lock_guard lock(why_mutex_);
    if (cancelled_.load(std::memory_order_relaxed)) {
      return;
    }
    why_ = why;
    cancelled_.store(true, std::memory_order_release);
  }
  interrupt(why);
}

void* BufferedCommunicator::travelling_shard(Segment segment) {
  return memory_->travelling[static_cast<size_t>(segment)];
}

void BufferedCommunicator::begin_update(Segment segment) {
  check_not_cancelled();
  TORCH_INTERNAL_ASSERT(!gathers_in_place() || state(segment).gathered != Gathered::Readable,
                        "unit '", spec(segment).name,
                        "' is to be updated while it is gathered here");
  tell(&Observer::started, Operation::Update, segment, 0);
  tell(&Observer::waiting, Operation::Update, segment, 0);
  await_readers(segment);
  tell(&Observer::ended, Operation::Update, segment, 0);
}

void BufferedCommunicator::publish(Segment segment) {
  check_not_cancelled();
  show_published(segment);
}

void* BufferedCommunicator::gather(Segment segment, void* slot, const GatherEvents& after) {
  check_not_cancelled();
  const int64_t bytes = segment_bytes(spec(segment), 1);
  tell(&Observer::started, Operation::Gather, segment, bytes);
  if (world_size() > 1) {
    ++counts_.gathers;
    counts_.bytes_sent += bytes * (gathers_in_place() ? gathered_pieces() : world_size() - 1);
  }
  add_to_history(counts_, Operation::Gather, segment, static_cast<int64_t>(spec(segment).dtype));
  state(segment).gathered = Gathered::Asked;
  return start_gather(segment, slot, after);
}

void BufferedCommunicator::wait_gather(Segment segment) {
  check_not_cancelled();
  if (state(segment).gathered != Gathered::Asked) {
    return;
  }
  const int64_t bytes = segment_bytes(spec(segment), 1);
  tell(&Observer::waiting, Operation::Gather, segment, bytes);
  finish_gather(segment);
  state(segment).gathered = Gathered::Readable;
  tell(&Observer::ended, Operation::Gather, segment, bytes);
}

void BufferedCommunicator::release(Segment segment) {
  if (std::exchange(state(segment).gathered, Gathered::Not) == Gathered::Readable) {
    finish_reading(segment);
  }
}

void* BufferedCommunicator::acquire_reduce_buffer(Segment segment, const Reduction& target) {
  check_not_cancelled();
  make_room();
  SegmentState& mine = state(segment);
  mine.gradients = place_of_sum(segment, target);
  mine.from_pool = mine.gradients == nullptr;
  if (mine.from_pool) {
    mine.gradients = memory_->acquire(segment);
  }
  return mine.gradients;
}

void BufferedCommunicator::release_reduce_buffer(Segment segment) {
  SegmentState& mine = state(segment);
  void* gradients = std::exchange(mine.gradients, nullptr);
  if (mine.from_pool) {
    memory_->reduce.give(gradients);
  }
}

void BufferedCommunicator::fill(Exchange& exchange, Segment segment, const Reduction& target) {
  SegmentState& mine = state(segment);
  exchange.segment = segment;
  exchange.target = target;
  exchange.dtype = reduced_dtype(spec(segment), target);
  add_to_history(counts_, Operation::Reduction, segment, static_cast<int64_t>(exchange.dtype));
  exchange.identity = {counts_.history, segment, static_cast<int32_t>(exchange.dtype)};
  if (target.source != nullptr) {
    exchange.gradients = const_cast<float*>(target.source);
  } else {
    exchange.gradients = std::exchange(mine.gradients, nullptr);
    exchange.is_acquired = mine.from_pool;
  }
}

void BufferedCommunicator::reduce(Segment segment, const Reduction& target) {
  check_not_cancelled();
  const int64_t bytes = sent_bytes(segment, target);
  tell(&Observer::started, Operation::Reduction, segment, bytes);
  make_room();
  if (world_size() > 1) {
    ++counts_.reductions;
    counts_.bytes_sent += bytes;
  }
  auto exchange = make_exchange();
  const int64_t received = receive_bytes(spec(segment), reduced_dtype(spec(segment), target));
  while (received > 0 && !receive_pool_->has_room_for(received)) {
    finish_oldest();
  }
  if (received > 0) {
    exchange->received = receive_pool_->take(received);
  }
  fill(*exchange, segment, target);
  exchanges_.push_back(std::move(exchange));
  start_exchange(*exchanges_.back());
  if (exchanges_.back()->has_ended) {
    auto ended = std::move(exchanges_.back());
    exchanges_.pop_back();
    retire(std::move(ended));
  }
}

int64_t BufferedCommunicator::sent_bytes(Segment segment, const Reduction& target) const {
  const SegmentSpec& of = spec(segment);
  const auto element = c10::elementSize(sent_dtype(of, reduced_dtype(of, target)));
  return of.shard_numel * static_cast<int64_t>(element) * (world_size() - 1);
}

void BufferedCommunicator::make_room() {
  while (exchanges_.size() >= detail::kReductionsInFlight) {
    finish_oldest();
  }
}

void BufferedCommunicator::finish_oldest() {
  Exchange& oldest = *exchanges_.front();
  tell(&Observer::waiting, Operation::Reduction, oldest.segment,
       sent_bytes(oldest.segment, oldest.target));
  finish_exchange(oldest);
  auto ended = std::move(exchanges_.front());
  exchanges_.pop_front();
  retire(std::move(ended));
}

void BufferedCommunicator::retire(std::unique_ptr<Exchange> exchange) {
  if (exchange->is_acquired) {
    memory_->reduce.give(exchange->gradients);
  }
  if (exchange->received != nullptr) {
    receive_pool_->give(exchange->received);
  }
  tell(&Observer::ended, Operation::Reduction, exchange->segment,
       sent_bytes(exchange->segment, exchange->target));
}

void BufferedCommunicator::finish_reductions() {
  check_not_cancelled();
  while (!exchanges_.empty()) {
    finish_oldest();
  }
}

void BufferedCommunicator::abandon() {
  if (memory_ == nullptr) {
    return;  // nothing was attached
  }
  for (Segment segment = 0; segment < static_cast<Segment>(segments_.size()); ++segment) {
    release(segment);
  }
  std::exception_ptr failure;
  if (!cancelled_.load(std::memory_order_acquire)) {
    try {
      finish_reductions();
    } catch (const std::exception& error) {
      failure = std::current_exception();
      cancel(error.what());  // no rank waits for them a second time
    }
  }
  while (!exchanges_.empty()) {
    given_up_.push_back(std::move(exchanges_.front()));
    exchanges_.pop_front();
  }
  for (SegmentState& mine : states_) {
    mine.gradients = nullptr;
  }
  try {
    forget_exchanges();
  } catch (const std::exception& error) {
    failure = failure == nullptr ? std::current_exception() : failure;
    cancel(error.what());
  }
  memory_->reduce.give_all();
  if (failure != nullptr) {
    std::rethrow_exception(failure);
  }
}

void BufferedCommunicator::reduce_numbers(std::span<double> values, ReduceOp op,
                                          Operation operation) {
  check_not_cancelled();
  const auto bytes = static_cast<int64_t>(values.size_bytes());
  tell(&Observer::started, operation, -1, bytes);
  tell(&Observer::waiting, operation, -1, bytes);
  if (world_size() > 1) {
    ++counts_.all_reduces;
  }
  add_to_history(counts_, operation, static_cast<int64_t>(values.size()), static_cast<int64_t>(op));
  const size_t count = values.size() + 1;  // with the signature
  std::vector<double> mine{signature()};
  mine.insert(mine.end(), values.begin(), values.end());
  std::vector<double> all(count * static_cast<size_t>(world_size()));
  // Gathered and reduced here, so that every rank adds in rank order and holds the same bits.
  gather_numbers(mine, all);
  for (int member = 0; member < world_size(); ++member) {
    if (all[static_cast<size_t>(member) * count] != mine.front()) {
      detail::throw_out_of_step(name_of(operation), rank_of_world(rank()), rank_of_world(member));
    }
  }
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = all[1 + i];
    for (size_t place = count + 1 + i; place < all.size(); place += count) {
      values[i] = detail::join(values[i], all[place], op);
    }
  }
  tell(&Observer::ended, operation, -1, bytes);
}

void BufferedCommunicator::all_reduce(std::span<double> values, ReduceOp op) {
  reduce_numbers(values, op, Operation::AllReduce);
}

at::Tensor BufferedCommunicator::gather_on_device(const at::Tensor& /*mine*/) {
  return {};
}

void BufferedCommunicator::all_reduce_on_device(const at::Tensor& values, ReduceOp op) {
  check_not_cancelled();
  if (world_size() == 1 && !values.is_cpu()) {
    return;
  }
  const at::Tensor all = values.is_cpu() ? at::Tensor() : gather_on_device(values);
  if (!all.defined()) {
    return Communicator::all_reduce_on_device(values, op);
  }
  const auto bytes = static_cast<int64_t>(values.nbytes());
  tell(&Observer::started, Operation::AllReduce, -1, bytes);
  ++counts_.all_reduces;
  add_to_history(counts_, Operation::AllReduce, values.numel(), static_cast<int64_t>(op));
  // The same sum in the same order on every rank.
  values.copy_(op == ReduceOp::Sum ? all.sum(0) : all.amax(0));
  tell(&Observer::ended, Operation::AllReduce, -1, bytes);
}

void BufferedCommunicator::barrier() {
  reduce_numbers({}, ReduceOp::Sum, Operation::Barrier);
}

// A whole number that a double holds.
double BufferedCommunicator::signature() const {
  return static_cast<double>(counts_.history >> 12U);
}

void BufferedCommunicator::check_identities(const Exchange& exchange,
                                            std::span<const Identity> by_rank) const {
  const Identity& mine = exchange.identity;
  const std::string at = described(Operation::Reduction, exchange.segment);
  const auto dtype_name = [](const Identity& of) {
    return c10::toString(static_cast<c10::ScalarType>(of.dtype));
  };
  for (size_t member = 0; member < by_rank.size(); ++member) {
    const Identity& other = by_rank[member];
    const int other_rank = rank_of_world(static_cast<int>(member));
    const std::string who = at + ": rank " + std::to_string(other_rank) + " reduces ";
    if (other.segment != mine.segment) {
      const bool is_known =
          other.segment >= 0 && other.segment < static_cast<int>(segments_.size());
      throw Error(ExitCode::RanksDisagree,
                  who + "unit '" + (is_known ? spec(other.segment).name : "(unknown)") +
                      "'. Every rank must run the same units in the same order.");
    }
    if (other.dtype != mine.dtype) {
      throw Error(ExitCode::RanksDisagree,
                  who + dtype_name(other) + ", this rank " + dtype_name(mine) +
                      ": one of them has accumulated a micro-batch without communication and the "
                      "other has not. Every rank must synchronise the same micro-batches.");
    }
    if (other.history != mine.history) {
      detail::throw_out_of_step(at, rank_of_world(rank()), other_rank);
    }
  }
}

void BufferedCommunicator::add_piece(const Exchange& exchange,
                                     const std::vector<const void*>& sources, int64_t first,
                                     int64_t numel) const {
  const Reduction& target = exchange.target;
  std::vector<at::Tensor> tensors;
  tensors.reserve(sources.size());
  for (const void* source : sources) {
    tensors.push_back(
        detail::flat_tensor(const_cast<void*>(source), numel, exchange.dtype, device_));
  }
  const auto begin = first * static_cast<int64_t>(c10::elementSize(target.dtype));
  const at::Tensor shard =
      detail::flat_tensor(static_cast<char*>(target.shard) + begin, numel, target.dtype, device_);
  const double squares =
      detail::shard_math::sum_in_rank_order(shard, target.accumulate, target.scale, tensors);
  if (target.squares != nullptr) {
    *target.squares = (first == 0 ? 0.0 : *target.squares) + squares;
  }
}

}  // namespace sherd
