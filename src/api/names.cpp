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

const char* name_of(Master master) {
  switch (master) {
    case Master::Float32:
      return "Float32";
    case Master::Split:
      return "Split";
    case Master::BFloat16:
      return "BFloat16";
  }
  return "";
}

}  // namespace sherd
