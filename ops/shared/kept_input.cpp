#include "ops/shared/kept_input.h"

#include <memory>

#include "ops/recompute.h"

namespace sherd::ops {
namespace {

// Where the input comes from that was not kept, in autograd's graph.
struct Source : torch::CustomClassHolder {
  std::shared_ptr<torch::autograd::Node> node;
  Recompute recompute = nullptr;

  // Null where the tensor cannot be computed again.
  static c10::intrusive_ptr<Source> of(const at::Tensor& tensor) {
    const Recompute recompute = recompute_of(tensor);
    if (recompute == nullptr) {
      return {};
    }
    auto source = c10::make_intrusive<Source>();
    source->node = tensor.grad_fn();
    source->recompute = recompute;
    return source;
  }
};

constexpr const char* kSource = "source";

}  // namespace

at::Tensor keep_input(torch::autograd::AutogradContext& context, const at::Tensor& input,
                      bool is_needed, bool after_norm) {
  const auto source = after_norm ? Source::of(input) : c10::intrusive_ptr<Source>();
  if (source) {
    context.saved_data[kSource] = at::IValue::make_capsule(source);
  }
  return is_needed && !source ? input : at::Tensor();
}

at::Tensor kept_input(torch::autograd::AutogradContext& context, const at::Tensor& saved) {
  const auto found = context.saved_data.find(kSource);
  if (found == context.saved_data.end()) {
    return saved;
  }
  const auto source = c10::static_intrusive_pointer_cast<Source>(found->second.toCapsule());
  return source->recompute(*source->node);
}

}  // namespace sherd::ops
