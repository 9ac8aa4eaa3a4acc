#include "ops/dropout.h"

#include <utility>

#include <c10/util/Exception.h>
#include <torch/csrc/autograd/custom_function.h>

#include "ops/backend.h"
#include "ops/shared/dropped.h"
#include "ops/shared/gradient.h"
#include "ops/shared/matrix.h"

namespace sherd::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// What is no differentiable tensor.
struct KeptDropout : torch::CustomClassHolder {
  explicit KeptDropout(Dropout of) : dropout(std::move(of)) {}
  Dropout dropout;
};

constexpr const char* kDropout = "dropout";

at::Tensor dropped_rows(const Backend& backend, const at::Tensor& input, const Dropout& dropout) {
  return dropped(backend, as_matrix(input), dropout).view(input.sizes());
}

struct DropoutFunction : torch::autograd::Function<DropoutFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input,
                            const Dropout& dropout) {
    context->saved_data[kDropout] =
        c10::IValue::make_capsule(c10::make_intrusive<KeptDropout>(dropout));
    return dropped_rows(choose_backend(*context, input), input, dropout);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    once_differentiable("sherd::dropout");
    const auto kept = c10::static_intrusive_pointer_cast<KeptDropout>(
        context->saved_data.at(kDropout).toCapsule());
    return {dropped_rows(chosen_backend(*context), gradients[0], kept->dropout), at::Tensor()};
  }
};

}  // namespace

at::Tensor dropped(const Backend& backend, const at::Tensor& matrix, const Dropout& dropout) {
  if (!dropout.drops()) {
    return matrix;
  }
  TORCH_CHECK_VALUE(dropout.row_keys.size(0) == matrix.size(0), "[dropout] got ",
                    dropout.row_keys.size(0), " keys for ", matrix.size(0), " rows");
  return backend.dropped(matrix, dropout);
}

at::Tensor dropout(const at::Tensor& input, const Dropout& dropout) {
  return dropout.drops() ? DropoutFunction::apply(input, dropout) : input;
}

}  // namespace sherd::ops
