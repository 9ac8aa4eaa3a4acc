// Attention by the kernel that is chosen for the shape, and by the next one where it fails.

#include <optional>

#include "ops/cuda/attention_choices.h"
#include "ops/cuda/attention_trial.h"
#include "ops/cuda/cuda_backend.h"
#include "ops/cuda/cudnn_attention.h"
#include "ops/cuda/dispatch.h"
#include "ops/cuda/flash_attention.h"

namespace sherd::ops::cuda {
namespace {

AttentionChoices& choices() {
  static AttentionChoices made;
  return made;
}

// Nothing, if the kernel cannot compute it: it is given up. Memory that ends, and a device that has
// failed, are not the kernel's to answer for.
template <class Compute>
auto attempt(const AttentionInputs& inputs, AttentionKernel kernel, const Compute& compute)
    -> std::optional<decltype(compute())> {
  try {
    return compute();
  } catch (const c10::OutOfMemoryError&) {
    throw;
  } catch (const c10::AcceleratorError&) {
    throw;
  } catch (const c10::Error& error) {
    choices().give_up(inputs, kernel, first_line_of(error));
    return std::nullopt;
  }
}

// Whether no query sees another token: nothing to choose.
bool is_trivial(const AttentionInputs& inputs) {
  return inputs.documents.longest() <= 1;
}

AttentionOutput attention(const AttentionInputs& inputs) {
  while (!is_trivial(inputs)) {
    const AttentionKernel kernel = choices().choose(inputs);
    if (kernel == AttentionKernel::Plain) {
      break;
    }
    const auto output = attempt(inputs, kernel, [&] {
      return kernel == AttentionKernel::Cudnn ? cudnn_attention(inputs) : flash_attention(inputs);
    });
    if (output) {
      return *output;
    }
  }
  return plain_backend().attention(inputs);
}

// Where the kernel of forward fails, or has failed meanwhile, forward and backward are computed
// again by the next one.
AttentionGradients attention_backward(const AttentionInputs& inputs, const AttentionOutput& output,
                                      const at::Tensor& grad_mixed_TD) {
  const AttentionKernel kernel = output.kernel;
  if (kernel == AttentionKernel::Plain) {
    return plain_backend().attention_backward(inputs, output, grad_mixed_TD);
  }
  if (!choices().is_given_up(inputs, kernel)) {
    const auto gradients = attempt(inputs, kernel, [&] {
      return kernel == AttentionKernel::Cudnn
                 ? cudnn_attention_backward(inputs, output, grad_mixed_TD)
                 : flash_attention_backward(inputs, output, grad_mixed_TD);
    });
    if (gradients) {
      return *gradients;
    }
  }
  return attention_backward(inputs, attention(inputs), grad_mixed_TD);
}

std::vector<AttentionChoice> attention_choices() {
  return choices().all();
}

}  // namespace

void add_attention(Backend& backend) {
  backend.attention = &attention;
  backend.attention_backward = &attention_backward;
  backend.attention_choices = &attention_choices;
}

}  // namespace sherd::ops::cuda
