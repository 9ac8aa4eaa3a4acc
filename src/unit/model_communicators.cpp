#include "unit/model_communicators.h"

#include "unit/unit_state.h"

namespace sherd::detail {

namespace {

// This rank's row of the mesh.
RankGroup row_of(const Mesh& mesh) {
  return {mesh.replicate_rank() * mesh.shard_size(), 1, mesh.shard_size()};
}

// The ranks that hold the same piece.
RankGroup column_of(const Mesh& mesh) {
  return {mesh.shard_rank(), mesh.shard_size(), mesh.replicate_size()};
}

// `size` consecutive ranks of this rank's row; `size` divides it.
RankGroup part_of_row(const Mesh& mesh, int size) {
  return {mesh.world().rank() / size * size, 1, size};
}

}  // namespace

ModelCommunicators::ModelCommunicators(Mesh& mesh, const ShardOptions& options, bool full_precision)
    : shards_(mesh.world().make_communicator(row_of(mesh))) {
  if (mesh.replicate_size() > 1) {
    replicas_ = mesh.world().make_communicator(column_of(mesh));
  }
  const int size = options.reshard_after_forward_size;
  if (size > 1 && size < mesh.shard_size()) {
    post_forward_ = mesh.world().make_communicator(part_of_row(mesh, size));
  }
  if (full_precision) {
    full_precision_ = mesh.world().make_communicator(row_of(mesh));
  }
}

void ModelCommunicators::attach(const std::vector<SegmentOfUnit>& segments, c10::Device device,
                                const std::shared_ptr<MemoryLedger>& ledger) {
  const auto attach = [&](Communicator* communicator, const auto& spec_of) {
    if (communicator == nullptr) {
      return;
    }
    std::vector<SegmentSpec> specs;
    for (const SegmentOfUnit& of : segments) {
      specs.push_back(spec_of(*of.unit, *of.segment));
    }
    communicator->attach(std::move(specs), device, ledger);
  };
  attach(shards_.get(), [](const UnitState& unit, const FlatSegment& segment) {
    return segment.spec(unit.name(), unit.is_root());
  });
  attach(replicas_.get(), [&](const UnitState& unit, const FlatSegment& segment) {
    return segment.replica_spec(unit.name(), unit.is_root(), replicas_->world_size());
  });
  attach(post_forward_.get(), [&](const UnitState& unit, const FlatSegment& segment) {
    return segment.post_forward_spec(unit.name(), post_forward_->world_size(),
                                     /*is_kept=*/unit.settings().reshard_after_forward);
  });
  attach(full_precision_.get(), [](const UnitState& unit, const FlatSegment& segment) {
    return segment.full_precision_spec(unit.name());
  });
}

SegmentCommunicators ModelCommunicators::all() const {
  return {shards_.get(), replicas_.get(), post_forward_.get(), full_precision_.get()};
}

void ModelCommunicators::abandon(bool in_backward) {
  shards_->abandon();
  if (replicas_ != nullptr && in_backward) {  // else it holds sums of earlier micro-batches
    replicas_->abandon();
  }
}

std::vector<const Communicator*> ModelCommunicators::made() const {
  std::vector<const Communicator*> made;
  for (const Communicator* const one :
       {shards_.get(), replicas_.get(), post_forward_.get(), full_precision_.get()}) {
    if (one != nullptr) {
      made.push_back(one);
    }
  }
  return made;
}

std::vector<double> ModelCommunicators::signatures() const {
  std::vector<double> signatures;
  for (const Communicator* const one : made()) {
    signatures.push_back(one->signature());
  }
  return signatures;
}

void ModelCommunicators::check_exchanges(const std::function<void()>& wait) const {
  shards_->check_exchanges(wait);
  for (const Communicator* const one : made()) {
    one->check_exchanges([] {});
  }
}

int64_t ModelCommunicators::most_received_bytes() const {
  return shards_->most_received_bytes() +
         (replicas_ != nullptr ? replicas_->most_received_bytes() : 0);
}

Communicator::Counts ModelCommunicators::counts() const {
  Communicator::Counts counts = shards_->counts();
  for (const Communicator* gathers : {post_forward_.get(), full_precision_.get()}) {
    if (gathers != nullptr) {
      counts.gathers += gathers->counts().gathers;
      counts.bytes_sent += gathers->counts().bytes_sent;
    }
  }
  if (replicas_ != nullptr) {
    counts.replications = replicas_->counts().reductions;
    counts.bytes_sent += replicas_->counts().bytes_sent;
  }
  return counts;
}

}  // namespace sherd::detail
