#include "checkpoint/files.h"

#include <cstdio>

namespace sherd::detail {

std::string shard_file_name(int rank, int world_size) {
  char name[64];
  std::snprintf(name, sizeof name, "shard-%05d-of-%05d.safetensors", rank, world_size);
  return name;
}

}  // namespace sherd::detail
