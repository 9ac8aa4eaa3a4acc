#include "sherd/mesh.h"

#include <string>
#include <utility>

#include "backends.h"
#include "sherd/error.h"

namespace sherd {

Mesh Mesh::shard(World world) {
  const int size = world.size();
  return {std::move(world), 1, size};
}

Mesh Mesh::hybrid(World world, int shard_size) {
  if (shard_size < 1 || world.size() % shard_size != 0) {
    throw Error(ExitCode::Usage, "[Mesh::hybrid] shard_size " + std::to_string(shard_size) +
                                     " does not divide the world of " +
                                     std::to_string(world.size()) +
                                     " ranks: choose a divisor, as the ranks of one host.");
  }
  return {std::move(world), 2, shard_size};
}

std::unique_ptr<Communicator> Mesh::make_shard_communicator() {
  return world_.make_communicator({replicate_rank() * shard_size_, 1, shard_size_});
}

std::unique_ptr<Communicator> Mesh::make_replicate_communicator() {
  return world_.make_communicator({shard_rank(), shard_size_, replicate_size()});
}

std::unique_ptr<Communicator> Mesh::make_post_forward_communicator(int size) {
  return world_.make_communicator({world_.rank() / size * size, 1, size});
}

}  // namespace sherd
