#include "llm/plan/kernels.h"

#include <algorithm>
#include <cmath>

#include <ATen/core/Tensor.h>

#include "llm/plan/moved_bytes.h"

namespace llm::plan {

namespace {

using Arguments = c10::ArrayRef<const c10::IValue>;
using Calls = std::vector<KernelCall>;

constexpr double kWide = 4;  // bytes of fp32

// Operators that are one kernel, which moves what moved_bytes() says.
struct OneKernel {
  std::string_view name;
  Kernel kernel;
};
constexpr std::array<OneKernel, 10> kOneKernel = {
    {{"rms_norm", Kernel::RmsNorm},
     {"rms_norm_again", Kernel::RmsNorm},
     {"rms_norm_backward", Kernel::RmsNormBackward},
     {"layer_norm", Kernel::LayerNorm},
     {"layer_norm_again", Kernel::LayerNorm},
     {"layer_norm_backward", Kernel::LayerNormBackward},
     {"bias_gelu", Kernel::BiasGelu},
     {"bias_gelu_backward", Kernel::BiasGeluBackward},
     {"rotary", Kernel::Rotary},
     {"rotary_backward", Kernel::Rotary}}};

// rows [r, i] and a weight [o, i].
struct Sizes {
  double rows;
  double inputs;
  double outputs;
  double element;  // bytes

  [[nodiscard]] double weight() const { return inputs * outputs; }
  [[nodiscard]] KernelCall product(Kernel kernel) const {
    return {kernel, 2 * rows * weight(), element * (rows * (inputs + outputs) + weight())};
  }
};

Sizes sizes_of(const Arguments& arguments) {
  const at::Tensor& rows = arguments[0].toTensor();
  const at::Tensor& weight = arguments[1].toTensor();
  return {static_cast<double>(rows.numel()) / static_cast<double>(rows.size(-1)),
          static_cast<double>(weight.size(1)), static_cast<double>(weight.size(0)),
          static_cast<double>(rows.element_size())};
}

KernelCall over(Kernel kernel, double values, double element) {
  return {.kernel = kernel, .bytes = values * element};
}

void add_backward_products(const Sizes& sizes, Calls& calls) {
  calls.push_back(sizes.product(Kernel::ProductTowardsInput));
  calls.push_back(sizes.product(Kernel::ProductTowardsWeight));
}

Calls linear_backward(const Arguments& arguments) {
  const Sizes sizes = sizes_of(arguments);
  Calls calls;
  add_backward_products(sizes, calls);
  if (arguments.size() > 2 && arguments[2].isTensor() && arguments[2].toTensor().defined()) {
    calls.push_back(over(Kernel::ColumnSums, sizes.rows * sizes.outputs, sizes.element));
  }
  return calls;
}

// Products with the A's and B's of low-rank updates: the last two arguments, where they are lists.
void add_updates(const Arguments& arguments, bool is_backward, Calls& calls) {
  const at::Tensor& rows = arguments[0].toTensor();
  const auto element = static_cast<double>(rows.element_size());
  const double count = static_cast<double>(rows.numel()) / static_cast<double>(rows.size(-1));
  for (std::size_t i = 1; i <= 2 && i < arguments.size(); ++i) {
    const c10::IValue& list = arguments[arguments.size() - i];
    for (const at::Tensor& matrix :
         list.isTensorList() ? list.toTensorVector() : std::vector<at::Tensor>()) {
      const Sizes sizes{count, static_cast<double>(matrix.size(1)),
                        static_cast<double>(matrix.size(0)), element};
      if (is_backward) {
        add_backward_products(sizes, calls);
      } else {
        calls.push_back(sizes.product(Kernel::Product));
      }
    }
  }
}

// Between gate and up and the product's input are as many values.
Calls gated_linear(const Arguments& arguments) {
  const Sizes sizes = sizes_of(arguments);
  Calls calls = {over(Kernel::SwiGlu, 3 * sizes.rows * sizes.inputs, sizes.element),
                 sizes.product(Kernel::Product)};
  add_updates(arguments, /*is_backward=*/false, calls);
  return calls;
}

Calls gated_linear_backward(const Arguments& arguments) {
  const Sizes sizes = sizes_of(arguments);
  const double values = sizes.rows * sizes.inputs;
  const bool in_one = is_gate_backward_in_one(arguments);
  Calls calls = {over(Kernel::SwiGluBackward, (in_one ? 6 : 5) * values, sizes.element)};
  if (!in_one) {
    calls.push_back(over(Kernel::SwiGlu, 3 * values, sizes.element));
  }
  calls.push_back(sizes.product(Kernel::ProductTowardsInput));
  if (!has_frozen_weight(arguments)) {
    calls.push_back(sizes.product(Kernel::ProductTowardsWeight));
  }
  add_updates(arguments, /*is_backward=*/true, calls);
  return calls;
}

struct LossParts {
  bool has_forward;
  bool has_backward;
  bool has_frozen_head;
};

Calls cross_entropy(const Sizes& chunk, const LossParts& parts) {
  const double logits = chunk.rows * chunk.outputs;
  Calls calls;
  if (parts.has_forward) {
    calls.push_back(chunk.product(Kernel::Logits));
    calls.push_back(over(Kernel::CrossEntropy, logits, chunk.element));
  }
  if (parts.has_backward) {
    calls.push_back(over(Kernel::CrossEntropyBackward, 2 * logits, chunk.element));
    calls.push_back(chunk.product(Kernel::ProductTowardsInput));
    if (!parts.has_frozen_head) {
      calls.push_back(chunk.product(Kernel::ProductTowardsWeight));
    }
  }
  return calls;
}

// Each chunk computes its gradients at once, and adds the weight's to a sum in fp32.
Calls chunked_cross_entropy(const Arguments& arguments) {
  Sizes sizes = sizes_of(arguments);
  const auto chunk = static_cast<double>(arguments[2].toInt());
  const double chunks = std::ceil(sizes.rows / chunk);
  sizes.rows /= chunks;
  const bool is_frozen = has_frozen_head(arguments);
  Calls calls = cross_entropy(sizes, {true, true, is_frozen});
  if (!is_frozen) {
    calls.push_back(over(Kernel::Copy, sizes.weight(), sizes.element + 2 * kWide));
  }
  calls.push_back(over(Kernel::Copy, sizes.rows * sizes.inputs, sizes.element + kWide));
  for (KernelCall& call : calls) {
    call.times = chunks;
  }
  if (!is_frozen) {
    calls.push_back(over(Kernel::Copy, sizes.weight(), kWide));  // the sum's zeros
  }
  return calls;
}

// The sum is rounded to the gradient.
Calls chunked_cross_entropy_backward(const Arguments& arguments) {
  const at::Tensor& sum = arguments[0].toTensor();
  return {over(Kernel::Copy, static_cast<double>(sum.numel()), kWide + kWide / 2)};
}

// Backward multiplies five times where forward does twice.
Calls attention(const Arguments& arguments, bool is_backward) {
  const double forward = attention_operations(arguments);
  return {is_backward ? KernelCall{Kernel::AttentionBackward, 2.5 * forward}
                      : KernelCall{Kernel::Attention, forward}};
}

}  // namespace

double window_of(c10::ArrayRef<const c10::IValue> arguments) {
  return arguments.size() > 2 ? static_cast<double>(arguments[2].toInt()) : 0;
}

double attention_operations(c10::ArrayRef<const c10::IValue> arguments) {
  const at::Tensor& query = arguments[0].toTensor();
  const std::vector<std::int64_t> bounds = arguments[1].toIntVector();
  const double window = window_of(arguments);
  double pairs = 0;
  for (std::size_t i = 1; i < bounds.size(); ++i) {
    const auto length = static_cast<double>(bounds[i] - bounds[i - 1]);
    const double hidden = window == 0 ? 0 : std::max(length - window, 0.0);
    pairs += (length * length - hidden * hidden) / 2;
  }
  return 4 * pairs * static_cast<double>(query.numel()) / static_cast<double>(query.size(0));
}

Calls kernels_of(std::string_view name, Arguments arguments) {
  if (name == "linear" || name == "inference_linear") {
    return {sizes_of(arguments).product(Kernel::Product)};
  }
  if (name == "linear_backward") {
    return linear_backward(arguments);
  }
  if (name == "linear_input_gradient") {
    return {sizes_of(arguments).product(Kernel::ProductTowardsInput)};
  }
  if (name == "linear_weight_gradient") {
    return {sizes_of(arguments).product(Kernel::ProductTowardsWeight)};
  }
  if (name == "lora_linear" || name == "lora_linear_backward") {
    Calls calls;
    add_updates(arguments, name == "lora_linear_backward", calls);
    return calls;
  }
  if (name == "swiglu_linear" || name == "geglu_linear") {
    return gated_linear(arguments);
  }
  if (name == "swiglu_linear_backward" || name == "geglu_linear_backward") {
    return gated_linear_backward(arguments);
  }
  if (name == "linear_cross_entropy" || name == "linear_cross_entropy_backward") {
    const bool is_backward = name == "linear_cross_entropy_backward";
    return cross_entropy(sizes_of(arguments),
                         {!is_backward, is_backward, has_frozen_head(arguments)});
  }
  if (name == "chunked_linear_cross_entropy") {
    return chunked_cross_entropy(arguments);
  }
  if (name == "chunked_linear_cross_entropy_backward") {
    return chunked_cross_entropy_backward(arguments);
  }
  if (name == "attention" || name == "attention_backward") {
    return attention(arguments, name == "attention_backward");
  }
  if (name == "embedding_backward") {  // rows of the table are read, and written
    const at::Tensor& gradient = arguments[0].toTensor();
    return {over(Kernel::EmbeddingGradient, 3 * static_cast<double>(gradient.numel()),
                 static_cast<double>(gradient.element_size()))};
  }
  const double bytes = moved_bytes(name, arguments);
  const auto* const one = std::find_if(kOneKernel.begin(), kOneKernel.end(),
                                       [&](const OneKernel& known) { return known.name == name; });
  return bytes > 0 ? Calls{{.kernel = one == kOneKernel.end() ? Kernel::Copy : one->kernel,
                            .bytes = bytes}}
                   : Calls{};
}

}  // namespace llm::plan
