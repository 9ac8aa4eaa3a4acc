#pragma once
// Do all ranks shard the same model in the same way? Asked before anything can hang.

#include <functional>

namespace sherd::detail {

struct Model;

/// Runs `build`, which makes the model's units, and compares units, shapes, dtypes and options.
/// Collective. Throws on every rank: what `build` threw on one of them, as agree() does;
/// Error(RanksDisagree), naming the first rank that differs from rank 0, and in what.
void build_and_compare(Model& model, const std::function<void()>& build);

}  // namespace sherd::detail
