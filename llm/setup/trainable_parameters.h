#pragma once
// The parameters of a model that are trained.

#include <string>
#include <vector>

#include <torch/nn/module.h>

namespace llm::setup {

/// Freezes each parameter whose name no pattern matches; without patterns none. A pattern is a
/// regular expression for a whole name (text::Pattern), such as `model.layers.29.*`. `model` may be
/// on meta, and is not sharded yet. Throws sherd::Error(Usage): for a pattern that is no regular
/// expression; for one that matches nothing, with the nearest names.
void freeze_all_but(torch::nn::Module& model, const std::vector<std::string>& patterns);

}  // namespace llm::setup
