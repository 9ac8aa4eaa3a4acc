#include "unit/communicators.h"

namespace sherd::detail {

ModelCommunicators::ModelCommunicators(Mesh& mesh, const ShardOptions& options,
                                       bool evaluates_in_full_precision) {
  World& world = mesh.world();
  const RankGroup row{mesh.replicate_rank() * mesh.shard_size(), 1, mesh.shard_size()};
  shards = world.make_communicator(row);
  if (mesh.replicate_size() > 1) {
    replicas =
        world.make_communicator({mesh.shard_rank(), mesh.shard_size(), mesh.replicate_size()});
  }
  const int size = options.reshard_after_forward_size;  // divides the row
  if (size > 1 && size < mesh.shard_size()) {
    post_forward = world.make_communicator({world.rank() / size * size, 1, size});
  }
  if (evaluates_in_full_precision) {
    full_precision = world.make_communicator(row);
  }
}

std::vector<Communicator*> ModelCommunicators::all() const {
  std::vector<Communicator*> all = {shards.get(), replicas.get(), post_forward.get(),
                                    full_precision.get()};
  std::erase(all, nullptr);
  return all;
}

Communicator::Counts ModelCommunicators::counts() const {
  Communicator::Counts counts = shards->counts();
  for (const Communicator* gathers : {post_forward.get(), full_precision.get()}) {
    if (gathers != nullptr) {
      counts.gathers += gathers->counts().gathers;
      counts.bytes_sent += gathers->counts().bytes_sent;
    }
  }
  if (replicas != nullptr) {
    counts.replications = replicas->counts().reductions;
    counts.bytes_sent += replicas->counts().bytes_sent;
  }
  return counts;
}

}  // namespace sherd::detail
