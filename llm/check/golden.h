#pragma once
// Compares a model with recorded values of the reference implementation.

#include <string>
#include <vector>

#include <c10/core/DeviceType.h>

namespace llm::check {

/// The largest relative differences between what a model computes and what was recorded.
struct GoldenDifferences {
  double logits = 0, loss = 0, gradient = 0;
  std::string worst_gradient;             ///< the parameter whose gradient differs most
  double losses = 0, gradient_norms = 0;  ///< over AdamW steps
};

/// Shards the model of a folder over `ranks` threads of this process (rank r takes rows r, r + N, …
/// of the batch), computes in fp32 and compares with `golden_path`, a safetensors file of inputs,
/// logits, loss, gradients, and of losses and gradient norms of steps. Throws sherd::Error as
/// llm::io does, and BadData for a file that lacks a tensor or has one of another shape.
/// `ignored_fields`: of config.json. On a GPU one rank computes, whatever `ranks` says.
/// `checkpoints`: layers keep their inputs only, and compute the rest again in backward. `adapter`:
/// a PEFT folder; it is trained over the model, gradients have the names of its tensors, and the
/// golden needs no logits.
[[nodiscard]] GoldenDifferences compare_with_golden(
    const std::string& model_folder, const std::string& golden_path, int ranks,
    const std::vector<std::string>& ignored_fields = {},
    c10::DeviceType device = c10::DeviceType::CPU, bool checkpoints = false,
    const std::string& adapter = "");

}  // namespace llm::check
