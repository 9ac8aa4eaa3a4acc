#include "sherd/lora.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <set>

#include <ATen/TensorOperators.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/zeros.h>

#include "kernels/random.h"
#include "sherd/error.h"
#include "sherd/state_dict.h"
#include "step/step.h"

namespace sherd {

namespace {

constexpr const char* kLoraA = "lora_A";
constexpr const char* kLoraB = "lora_B";

[[noreturn]] void refuse_lora(const std::string& what) {
  throw Error(ExitCode::Usage, "[lora] " + what);
}

std::string of_module(const std::string& name) {
  return name.empty() ? "the adapter" : "module '" + name + "'";
}

void check_shape(const LoraShape& shape, const std::string& name) {
  if (shape.rank < 1) {
    refuse_lora("rank " + std::to_string(shape.rank) + " for " + of_module(name) +
                ": an adapter has at least rank 1. Set LoraShape::rank (8 and 16 are usual).");
  }
  if (!std::isfinite(shape.alpha) || shape.alpha == 0) {
    refuse_lora("alpha " + std::to_string(shape.alpha) + " for " + of_module(name) +
                ": the adapter would change nothing. Set LoraShape::alpha (twice the rank is "
                "usual).");
  }
  if (!(shape.dropout >= 0 && shape.dropout < 1)) {
    refuse_lora("dropout " + std::to_string(shape.dropout) + " for " + of_module(name) +
                ": it is a probability of at least 0 and below 1.");
  }
}

[[noreturn]] void refuse_second(const std::string& name) {
  refuse_lora(of_module(name) +
              " has an adapter already: call lora() once, and give each module's shape by "
              "LoraOptions::choose.");
}

// A matrix in a module of its own, named as PEFT names them.
at::Tensor add_matrix(torch::nn::Module& module, const char* name, const at::Tensor& values) {
  auto holder = module.register_module(name, std::make_shared<torch::nn::Module>(name));
  return holder->register_parameter("weight", values);
}

// As torch::nn::Linear draws its weight and bias: kaiming_uniform(√5).
double usual_bound(int64_t in_features) {
  return in_features > 0 ? 1 / std::sqrt(static_cast<double>(in_features)) : 0;
}

struct ChosenModule {
  std::string name;
  LoraModule* module = nullptr;
  LoraShape shape;
};

bool is_target(const std::string& name, const std::string& entry) {
  return name == entry || name.ends_with("." + entry);
}

// Distinct last parts of the names: "down_proj, gate_proj".
std::string last_parts(const std::vector<ChosenModule>& modules) {
  std::set<std::string> parts;
  for (const ChosenModule& one : modules) {
    parts.insert(one.name.substr(one.name.rfind('.') + 1));
  }
  std::string text;
  for (const std::string& part : parts) {
    text += (text.empty() ? "" : ", ") + part;
  }
  return text;
}

// Every linear layer that can be adapted, once.
std::vector<ChosenModule> adaptable(torch::nn::Module& model) {
  std::vector<ChosenModule> modules;
  std::set<const LoraModule*> seen;
  for (const auto& item : model.named_modules("", /*include_self=*/false)) {
    auto* const module = dynamic_cast<LoraModule*>(item.value().get());
    if (module != nullptr && seen.insert(module).second) {
      modules.push_back({item.key(), module, {}});
    }
  }
  return modules;
}

// What an entry of the targets names, if that is no LoraModule.
void refuse_what_cannot_be_adapted(const torch::nn::Module& model, const std::string& entry) {
  for (const auto& item : model.named_modules("", /*include_self=*/false)) {
    const torch::nn::Module& module = *item.value();
    if (!is_target(item.key(), entry) || dynamic_cast<const LoraModule*>(&module) != nullptr) {
      continue;
    }
    const std::string found = "target '" + entry + "' matches '" + item.key() + "', ";
    if (module.name() == "torch::nn::LinearImpl") {
      refuse_lora(found +
                  "a torch::nn::Linear, which has no place for an adapter: declare it as "
                  "sherd::LoraLinear, which takes the same arguments and checkpoints.");
    }
    refuse_lora(found + "which is no linear layer (" + module.name() +
                "): name sherd::LoraLinear layers, or leave the targets empty for all of them.");
  }
}

void check_targets(const torch::nn::Module& model, const std::vector<ChosenModule>& modules,
                   const std::vector<std::string>& targets) {
  for (const std::string& entry : targets) {
    refuse_what_cannot_be_adapted(model, entry);
    if (std::ranges::none_of(modules,
                             [&](const ChosenModule& one) { return is_target(one.name, entry); })) {
      refuse_lora("target '" + entry +
                  "' matches no module. Linear layers of this model: " + last_parts(modules) + ".");
    }
  }
}

// Which shape a module gets.
std::optional<LoraShape> shape_of(const std::string& name, const LoraOptions& options) {
  if (options.choose) {
    return options.choose(name);
  }
  const bool is_named =
      options.targets.empty() || std::ranges::any_of(options.targets, [&](const auto& entry) {
        return is_target(name, entry);
      });
  return is_named ? std::optional(options.shape) : std::nullopt;
}

std::vector<ChosenModule> chosen_modules(torch::nn::Module& model, const LoraOptions& options) {
  const std::vector<ChosenModule> modules = adaptable(model);
  if (modules.empty()) {
    refuse_lora(
        "the model has no layer with a place for an adapter: declare linear layers as "
        "sherd::LoraLinear instead of torch::nn::Linear.");
  }
  if (!options.choose) {
    check_targets(model, modules, options.targets);
  }
  std::vector<ChosenModule> chosen;
  for (const ChosenModule& one : modules) {
    if (const auto shape = shape_of(one.name, options)) {
      check_shape(*shape, one.name);
      if (one.module->lora() != nullptr) {
        refuse_second(one.name);
      }
      chosen.push_back({one.name, one.module, *shape});
    }
  }
  if (chosen.empty()) {
    refuse_lora("LoraOptions::choose chose no module. Linear layers of this model: " +
                last_parts(modules) + ".");
  }
  return chosen;
}

void refuse_sharded(const torch::nn::Module& model) {
  for (const auto& item : model.named_parameters()) {
    if (detail::is_sharded(item.value())) {
      refuse_lora("parameter '" + item.key() +
                  "' is sharded already: call lora() before fully_shard().");
    }
  }
}

}  // namespace

double LoraShape::scale() const {
  const auto of_rank = static_cast<double>(rank);
  return alpha / (rank_stabilized ? std::sqrt(of_rank) : of_rank);
}

void LoraModule::add_lora(const LoraShape& shape, const std::string& name) {
  check_shape(shape, name);
  if (adapter_) {
    refuse_second(name);
  }
  auto& module = dynamic_cast<torch::nn::Module&>(*this);
  const auto parameters = module.parameters(/*recurse=*/false);
  const auto options =
      at::TensorOptions(at::kFloat)
          .device(parameters.empty() ? c10::Device(c10::kCPU) : parameters.front().device());
  const double bound = usual_bound(in_features());
  adapter_ = LoraAdapter{
      .A = add_matrix(module, kLoraA,
                      at::empty({shape.rank, in_features()}, options).uniform_(-bound, bound)),
      .B = add_matrix(module, kLoraB, at::zeros({out_features(), shape.rank}, options)),
      .scale = shape.scale(),
      .dropout = shape.dropout,
      .key = kernels::stable_hash(name)};
}

void LoraModule::enable_lora(bool enabled) {
  if (adapter_) {
    adapter_->enabled = enabled;
  }
}

LoraLinearImpl::LoraLinearImpl(const torch::nn::LinearOptions& options) {
  const double bound = usual_bound(options.in_features());
  weight = register_parameter("weight",
                              at::empty({options.out_features(), options.in_features()}, at::kFloat)
                                  .uniform_(-bound, bound));
  if (options.bias()) {
    bias = register_parameter(
        "bias", at::empty({options.out_features()}, at::kFloat).uniform_(-bound, bound));
  }
}

at::Tensor LoraLinearImpl::forward(const at::Tensor& input) const {
  const at::Tensor base = at::linear(input, weight, bias);
  const LoraAdapter* const adapter = lora();
  if (adapter == nullptr || !adapter->enabled) {
    return base;
  }
  const at::Tensor kept =
      at::dropout(input, adapter->dropout, is_training()).to(adapter->A.scalar_type());
  const at::Tensor update = at::linear(at::linear(kept, adapter->A), adapter->B) * adapter->scale;
  return base + update.to(base.scalar_type());
}

std::vector<std::string> lora(torch::nn::Module& model, const LoraOptions& options) {
  refuse_sharded(model);
  const std::vector<ChosenModule> chosen = chosen_modules(model, options);
  for (at::Tensor& parameter : model.parameters()) {
    parameter.requires_grad_(false);
  }
  std::vector<std::string> names;
  for (const ChosenModule& one : chosen) {
    one.module->add_lora(one.shape, one.name);
    names.push_back(one.name);
  }
  return names;
}

void enable_lora(torch::nn::Module& model, bool enabled) {
  for (const auto& module : model.modules(/*include_self=*/false)) {
    if (auto* const adapted = dynamic_cast<LoraModule*>(module.get())) {
      adapted->enable_lora(enabled);
    }
  }
}

bool initialize_lora(ParameterInit& parameter) {
  const auto is_weight_of = [&](const char* matrix) {
    return parameter.name().ends_with(std::string(".") + matrix + ".weight");
  };
  if (is_weight_of(kLoraA)) {
    parameter.fill_kaiming_uniform(std::sqrt(5.0));
    return true;
  }
  if (is_weight_of(kLoraB)) {
    parameter.fill_constant(0);
    return true;
  }
  return false;
}

}  // namespace sherd
