#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#pragma push_macro("SHERD_NARROW_TORCH")  // include/sherd/narrow/README.md
#undef SHERD_NARROW_TORCH
#include <torch/library.h>
#pragma pop_macro("SHERD_NARROW_TORCH")

#include "sherd/fully_shard.h"

namespace sherd::detail {

namespace {

// C++ has no default device. A fallback on a dispatch key that nothing else uses is called before
// every operator; it sets the `device` argument of factory functions to meta and calls the
// operator.
void build_on_meta(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& arguments = op.schema().arguments();
  const size_t first = stack->size() - arguments.size();
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].name() == "device") {
      (*stack)[first + i] = c10::IValue(c10::Device(c10::kMeta));
    }
  }
  const c10::impl::ExcludeDispatchKeyGuard past(c10::DispatchKey::DeferredInit);
  op.callBoxed(stack);
}

void register_fallback_once() {
  static const torch::Library registered = [] {
    torch::Library library(torch::Library::IMPL, "_", c10::DispatchKey::DeferredInit, __FILE__,
                           __LINE__);
    library.fallback(torch::CppFunction::makeFromBoxedFunction<&build_on_meta>());
    return library;
  }();
}

}  // namespace

struct MetaGuard::State {
  c10::impl::IncludeDispatchKeyGuard include{c10::DispatchKey::DeferredInit};
};

MetaGuard::MetaGuard() {
  register_fallback_once();
  state_ = std::make_unique<State>();
}

MetaGuard::~MetaGuard() = default;

}  // namespace sherd::detail
