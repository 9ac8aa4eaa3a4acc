// golden_check MODEL_DIR GOLDEN.safetensors [--ranks N] [--device cpu|cuda]
// [--checkpoint-activations]
// [--adapter FOLDER] [--ignore-fields A,B]: does a model compute what the reference implementation
// recorded?
//
// Prints one line of JSON: the largest relative differences of logits, loss and gradients, and of
// losses and gradient norms over AdamW steps. Exits 0 when it could compare.

#include <iostream>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "app/ignore_fields.h"
#include "app/verbs.h"
#include "llm/check/golden.h"
#include "sherd/error.h"

namespace app {

int golden_check(int argc, char** argv) {
  CLI::App command(
      "Compares a model's logits, loss, gradients and training steps with recorded ones.",
      "golden_check");
  std::string model_folder;
  std::string golden_path;
  int ranks = 1;
  std::vector<std::string> ignored_fields;
  command.add_option("MODEL_DIR", model_folder, "Hugging Face model folder")->required();
  command.add_option("GOLDEN", golden_path, "safetensors file of recorded values")->required();
  command.add_option("--ranks", ranks, "ranks to shard over, as threads, 1 to 64")
      ->check(CLI::Range(1, 64).description(""))
      ->capture_default_str();
  std::string device = "cpu";
  command.add_option("--device", device, "device; cuda: one rank")
      ->check(CLI::IsMember({"cpu", "cuda"}).description(""))
      ->type_name("cpu|cuda")
      ->capture_default_str();
  bool checkpoints = false;
  command.add_flag("--checkpoint-activations", checkpoints,
                   "layers keep their inputs only and compute the rest again in backward");
  std::string adapter;
  command.add_option("--adapter", adapter, "PEFT folder that is trained over the model");
  app::add_ignore_fields(command, ignored_fields);
  try {
    command.parse(argc, argv);
    const llm::check::GoldenDifferences found = llm::check::compare_with_golden(
        model_folder, golden_path, ranks, ignored_fields,
        device == "cuda" ? c10::DeviceType::CUDA : c10::DeviceType::CPU, checkpoints, adapter);
    const nlohmann::ordered_json report = {
        {"logits_rel", found.logits}, {"loss_rel", found.loss},
        {"grad_rel", found.gradient}, {"grad_worst", found.worst_gradient},
        {"losses_rel", found.losses}, {"grad_norms_rel", found.gradient_norms}};
    std::cout << report.dump() << '\n';
    return static_cast<int>(sherd::ExitCode::Done);
  } catch (const CLI::ParseError& fault) {
    return command.exit(fault) == 0 ? 0 : static_cast<int>(sherd::ExitCode::Usage);
  } catch (const sherd::Error& error) {
    std::cerr << "golden_check: " << error.what() << '\n';
    return static_cast<int>(error.code());
  } catch (const std::exception& error) {
    std::cerr << "golden_check: internal error: " << error.what() << '\n';
    return static_cast<int>(sherd::ExitCode::Internal);
  }
}

}  // namespace app
