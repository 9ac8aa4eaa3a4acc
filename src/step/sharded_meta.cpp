#include "step/sharded_meta.h"

#include <memory>
#include <utility>

#include <torch/csrc/autograd/variable.h>

#include "sherd/error.h"
#include "step/graph_task.h"

namespace sherd::detail {

namespace {

class ShardedMeta final : public torch::autograd::AutogradMeta {
 public:
  explicit ShardedMeta(std::string parameter) : parameter_(std::move(parameter)) {}

  torch::autograd::Variable& mutable_grad() override {
    check_in_backward();
    return grad_;
  }
  [[nodiscard]] const torch::autograd::Variable& grad() const override {
    check_in_backward();
    return grad_;
  }

 private:
  void check_in_backward() const {
    if (!inside_backward()) {
      throw Error(ExitCode::Usage,
                  "[grad] parameter '" + parameter_ +
                      "' is sharded, and its gradient is not on the module: use sherd::AdamW, "
                      "sherd::clip_grad_norm and ShardedModule::zero_grad() in place of "
                      "torch::optim, torch::nn::utils and Module::zero_grad(), and read "
                      "ParameterShard::gradient.");
    }
  }

  std::string parameter_;
};

}  // namespace

void install_sharded_meta(const at::Tensor& parameter, const std::string& name) {
  auto meta = std::make_unique<ShardedMeta>(name);
  if (auto* old = torch::autograd::impl::get_autograd_meta(parameter)) {
    meta->requires_grad_ = old->requires_grad_;
    meta->hooks_ = std::move(old->hooks_);
    meta->cpp_hooks_list_ = std::move(old->cpp_hooks_list_);
  }
  parameter.unsafeGetTensorImpl()->set_autograd_meta(std::move(meta));
}

}  // namespace sherd::detail
