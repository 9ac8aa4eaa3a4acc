#pragma once
// LoRA: small trainable matrices beside frozen linear layers.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "sherd/narrow/module.h"

namespace sherd {

class ParameterInit;

/// Size and scale of one adapter.
struct LoraShape {
  int64_t rank = 0;              ///< columns of B and rows of A; at least 1
  double alpha = 0;              ///< numerator of the scale; not 0
  double dropout = 0;            ///< probability in [0, 1) that an element of A's input is dropped
  bool rank_stabilized = false;  ///< the scale is alpha ÷ √rank, not alpha ÷ rank

  /// Returns the factor of the adapter's output.  Paper: rsLoRA, arXiv:2312.03732.
  [[nodiscard]] double scale() const;
};

/// The adapter of one linear layer: output += scale × B · A · dropout(input).
struct LoraAdapter {
  at::Tensor A;         ///< parameter `lora_A.weight` [rank, in_features]
  at::Tensor B;         ///< parameter `lora_B.weight` [out_features, rank]
  double scale = 1;     ///< LoraShape::scale()
  double dropout = 0;   ///< LoraShape::dropout
  uint64_t key = 0;     ///< hash of the module's qualified name, the same on every machine
  bool enabled = true;  ///< false: the base alone is computed
};

/// Base class of a linear layer that lora() can adapt, next to torch::nn::Module. C++ modules have
/// no forward hooks, so the layer's own `forward` adds the adapter's output where lora() returns
/// one that is enabled. PyTorch: `peft.tuners.lora.LoraLayer`.
class LoraModule {
 public:
  LoraModule() = default;
  LoraModule(const LoraModule&) = default;             ///< Shares the tensors of the adapter.
  LoraModule& operator=(const LoraModule&) = default;  ///< Shares the tensors of the adapter.
  LoraModule(LoraModule&&) = default;                  ///< Takes the adapter over.
  LoraModule& operator=(LoraModule&&) = default;       ///< Takes the adapter over.
  virtual ~LoraModule() = default;

  /// Returns the width of the map's input, whatever the layout of its weight.
  [[nodiscard]] virtual int64_t in_features() const = 0;
  /// Returns the width of the map's output.
  [[nodiscard]] virtual int64_t out_features() const = 0;

  /// Registers the child modules lora_A and lora_B, fp32 on the device of the layer's parameters.
  /// A is uniform over ±1 ÷ √in_features, drawn from LibTorch's generator; B is zero, so the layer
  /// computes what it did before. `name`: the module's qualified name, for LoraAdapter::key. Throws
  /// Error(Usage) for a shape out of range, or a second adapter.
  void add_lora(const LoraShape& shape, const std::string& name = "");
  /// Returns the adapter, or null without one.
  [[nodiscard]] const LoraAdapter* lora() const { return adapter_ ? &*adapter_ : nullptr; }
  /// Turns the adapter on or off. No effect without one.
  void enable_lora(bool enabled);

 private:
  std::optional<LoraAdapter> adapter_;
};

/// A linear layer that lora() can adapt. Takes the arguments of `torch::nn::Linear` and has its
/// parameters, names and initial values, so it reads the same checkpoints.
class LoraLinearImpl : public torch::nn::Module, public LoraModule {
 public:
  /// A layer with a bias.
  LoraLinearImpl(int64_t in_features, int64_t out_features)
      : LoraLinearImpl(torch::nn::LinearOptions(in_features, out_features)) {}
  /// As `torch::nn::Linear`.
  explicit LoraLinearImpl(const torch::nn::LinearOptions& options);

  /// Returns input · weightᵀ + bias, plus the adapter's output if one is enabled.
  /// [..., in_features] -> [..., out_features]. The adapter's part is computed in the dtype of A.
  /// In training mode, dropout draws from LibTorch's generator.
  at::Tensor forward(const at::Tensor& input) const;

  [[nodiscard]] int64_t in_features() const override { return weight.size(1); }
  [[nodiscard]] int64_t out_features() const override { return weight.size(0); }

  at::Tensor weight;  ///< [out_features, in_features]
  at::Tensor bias;    ///< [out_features]; undefined without one
};
/// Holder of LoraLinearImpl.
TORCH_MODULE(LoraLinear);

/// Which modules lora() adapts, and how.
struct LoraOptions {
  LoraShape shape = {};  ///< of every module, without `choose`
  /// Each entry is a module's qualified name, or the end of it after a dot: "q_proj" adapts every
  /// module of that name. Empty: every LoraModule.
  std::vector<std::string> targets = {};
  /// Called with the name of each LoraModule, instead of `shape` and `targets`: returns the shape
  /// of its adapter, or nullopt for none.
  std::function<std::optional<LoraShape>(const std::string& module)> choose = {};
};

/// Adds adapters to chosen modules inside `model` and freezes every other parameter. Returns the
/// names of the adapted modules, in registration order. Call it before fully_shard(): the frozen
/// base then has no masters, gradients or moments, and no gradient of it travels. Adapters may be
/// built on the meta device with the rest of the model; initialize_lora() gives them values.
///
/// Not collective: each rank calls it alike. Throws Error(Usage), before it changes anything, for a
/// rank below 1, alpha 0, a dropout outside [0, 1), an entry of `targets` that matches no linear
/// layer, a `torch::nn::Linear` among the matches (declare it as LoraLinear), a module that has an
/// adapter already, and a model that is sharded already. PyTorch: `peft.get_peft_model`.  Paper:
/// LoRA, arXiv:2106.09685.
std::vector<std::string> lora(torch::nn::Module& model, const LoraOptions& options);

/// Turns all adapters of `model` on or off. Off, the model computes what its base does. Not
/// collective: each rank calls it alike, before or after fully_shard(), between steps. PyTorch:
/// `PeftModel.disable_adapter`.
void enable_lora(torch::nn::Module& model, bool enabled);

/// For initialize(): fills a `lora_A.weight` or `lora_B.weight` with the values that add_lora()
/// describes, as a function of seed and name, so they are the same on any world size. Returns false
/// for any other parameter, which it leaves alone. Throws as ParameterInit does.
bool initialize_lora(ParameterInit& parameter);

}  // namespace sherd
