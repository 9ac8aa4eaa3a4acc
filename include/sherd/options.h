#pragma once
// How a model is sharded: plain aggregates, read once by fully_shard().

#include <optional>

#include <c10/core/ScalarType.h>

namespace sherd {

/// What each rank keeps between uses of a unit. PyTorch: `reshard_after_forward`.  Paper: ZeRO,
/// arXiv:1910.02054.
enum class Strategy {
  /// Parameters, gradients and optimizer state sharded; a unit's full parameters live only while it
  /// runs (ZeRO-3).
  /// Least memory: two gathers a unit and step. PyTorch: `reshard_after_forward=True`.
  FullShard,
  /// As FullShard, but gathered parameters stay from forward to backward (ZeRO-2): one gather a
  /// unit and step, for the
  /// memory of the whole gathered model. PyTorch: `reshard_after_forward=False`.
  ShardGradOp,
};

/// The dtypes of a sharded model. PyTorch: `MixedPrecisionPolicy`.
struct Precision {
  /// Dtype of gathered parameters, and so of computation: kFloat or kBFloat16. Unset: each
  /// parameter's own. The master shard that the optimizer updates is fp32 whatever this is.
  std::optional<c10::ScalarType> param_dtype = std::nullopt;
  /// Dtype in which gradients of ranks and micro-batches are summed, and of the gradient shard.
  /// Only kFloat: sums in fewer bits lose what small gradients add.
  c10::ScalarType reduce_dtype = c10::ScalarType::Float;
  /// Casts floating-point tensors passed to a unit to `param_dtype`. PyTorch:
  /// `cast_forward_inputs`.
  bool cast_forward_inputs = true;
};

/// Options of fully_shard().
struct ShardOptions {
  Strategy strategy = Strategy::FullShard;
  Precision precision = {};
  /// How many units are gathered ahead of the one that runs, 0…8. Each costs the memory of one
  /// gathered unit.
  int prefetch_depth = 1;
};

}  // namespace sherd
