#include "sherd/options.h"

namespace sherd {

const char* name_of(Strategy strategy) {
  switch (strategy) {
    case Strategy::FullShard:
      return "FullShard";
    case Strategy::ShardGradOp:
      return "ShardGradOp";
    case Strategy::NoShard:
      return "NoShard";
    case Strategy::HybridShard:
      return "HybridShard";
    case Strategy::HybridShardGradOp:
      return "HybridShardGradOp";
  }
  return "";
}

}  // namespace sherd
