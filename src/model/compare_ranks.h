#pragma once
// Do all ranks shard the same model in the same way? Asked before anything can hang.

namespace sherd::detail {

struct Model;

/// Compares units, shapes, dtypes and options. Collective. Throws Error(RanksDisagree) on every
/// rank, naming the first rank that differs from rank 0, and in what.
void compare_ranks(Model& model);

}  // namespace sherd::detail
