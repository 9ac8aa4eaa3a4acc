#pragma once
// A linear operator that writes its weight's gradient into its GradSlot, as Sherd's own do.

#include <ATen/ops/mm.h>
#include <torch/csrc/autograd/custom_function.h>

#include "sherd/custom.h"

namespace sherd::test {

/// x [rows, in] × weight [out, in]ᵀ. `last_slot` tells where the weight's gradient was written.
struct SlotLinear : torch::autograd::Function<SlotLinear> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            const at::Tensor& weight, const std::shared_ptr<void*>& last_slot) {
    context->save_for_backward({x, weight});
    slot_pointer(context) = last_slot;
    return at::mm(x, weight.t());
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const at::Tensor& gradient = gradients[0];
    at::Tensor weight_gradient;
    if (auto slot = GradSlot::of(saved[1])) {
      slot.write([&](at::Tensor& out) {
        at::mm_out(out, gradient.t(), saved[0]);
        if (auto pointer = slot_pointer(context)) {
          *pointer = out.data_ptr();
        }
      });
    } else {
      weight_gradient = at::mm(gradient.t(), saved[0]);
    }
    return {at::mm(gradient, saved[1]), weight_gradient, at::Tensor()};
  }

 private:
  struct Holder : torch::CustomClassHolder {
    std::shared_ptr<void*> pointer;
  };
  static std::shared_ptr<void*>& slot_pointer(torch::autograd::AutogradContext* context) {
    auto& place = context->saved_data["slot"];
    if (place.isNone()) {
      place = c10::IValue::make_capsule(c10::make_intrusive<Holder>());
    }
    return static_cast<Holder&>(*place.toCapsule()).pointer;
  }
};

inline at::Tensor slot_linear(const at::Tensor& x, const at::Tensor& weight,
                              const std::shared_ptr<void*>& last_slot = nullptr) {
  return SlotLinear::apply(x, weight, last_slot);
}

}  // namespace sherd::test
