// What autograd saves while a unit runs, kept on the host instead of where it was computed.

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/input_buffer.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>
#include <torch/csrc/autograd/variable.h>

#include "sherd/error.h"
#include "step/step.h"
#include "storage/movable_storage.h"

namespace sherd::detail {

namespace {

using torch::autograd::SavedVariableHooks;

// Where tensors go that autograd saves on this thread. No store: they stay.
struct Destination {
  ActivationStore* store = nullptr;
  std::shared_ptr<SavedByCall> call = {};
};

Destination& current() {
  static thread_local Destination destination;
  return destination;
}

// A saved tensor: where its storage is parked and how it lies there, or the tensor.
class Saved final : public SavedVariableHooks {
 public:
  explicit Saved(Destination destination) : destination_(std::move(destination)) {}

  // A tensor that may be the saving operator's own result must not be held: it holds the operator.
  void call_pack_hook(const at::Tensor& tensor) override {
    const Destination to = std::exchange(destination_, {});
    if (!to.store->takes(tensor)) {
      kept_ = tensor.is_leaf() ? tensor : tensor.detach();
      const bool is_parameter = tensor.is_leaf() && tensor.requires_grad();
      if (!is_parameter) {  // whose values are gathered anew
        version_ = torch::autograd::impl::version_counter(tensor);
        saved_version_ = version_->current_version();
      }
      return;
    }
    sizes_ = tensor.sizes().vec();
    strides_ = tensor.strides().vec();
    offset_ = tensor.storage_offset();
    dtype_ = tensor.scalar_type();
    parked_ = to.call->park(*to.store, tensor);
  }
  at::Tensor call_unpack_hook() override {
    if (parked_ == nullptr) {
      if (version_ && version_->current_version() != saved_version_) {
        refuse_changed_in_place();
      }
      return kept_;
    }
    const at::Tensor tensor = view_of(
        c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(parked_->use().unsafeGetStorageImpl()),
        offset_, {0}, dtype_);
    tensor.unsafeGetTensorImpl()->set_sizes_and_strides(sizes_, strides_);
    return tensor;
  }

 private:
  Destination destination_;
  std::shared_ptr<ParkedStorage> parked_;
  std::vector<int64_t> sizes_;
  std::vector<int64_t> strides_;
  int64_t offset_ = 0;
  at::ScalarType dtype_ = at::kFloat;
  at::Tensor kept_;
  std::optional<c10::VariableVersion> version_;  // of `kept_`; LibTorch checks none under hooks
  uint32_t saved_version_ = 0;
};

// [Note: Hooks of saved tensors]
// LibTorch asks its engine for the hooks of every tensor that autograd saves, and only Python's has
// any. So this one takes the place of the usual one, which does all else: a second one could not
// start threads for devices.
class EngineWithHooks final : public torch::autograd::Engine {
 public:
  using Variables = torch::autograd::variable_list;
  using Edges = torch::autograd::edge_list;
  ~EngineWithHooks() override { stop(); }
  Variables execute(const Edges& roots, const Variables& inputs, bool keep_graph, bool create_graph,
                    bool accumulate_grad, const Edges& outputs) override {
    return get_base_engine().execute(roots, inputs, keep_graph, create_graph, accumulate_grad,
                                     outputs);
  }
  c10::intrusive_ptr<at::ivalue::Future> execute_with_graph_task(
      const std::shared_ptr<torch::autograd::GraphTask>& task,
      std::shared_ptr<torch::autograd::Node> root, torch::autograd::InputBuffer&& inputs) override {
    return get_base_engine().execute_with_graph_task(task, std::move(root), std::move(inputs));
  }
  std::unique_ptr<SavedVariableHooks> get_default_saved_variable_hooks() override {
    return current().store == nullptr ? nullptr : std::make_unique<Saved>(current());
  }
};

torch::autograd::Engine& engine_with_hooks() {
  static EngineWithHooks engine;
  return engine;
}

void install_engine() {
  static const bool is_ours = [] {
    const bool was_usual = &torch::autograd::Engine::get_default_engine() ==
                           &torch::autograd::Engine::get_base_engine();
    if (was_usual) {
      torch::autograd::set_default_engine_stub(&engine_with_hooks);
    }
    return was_usual;
  }();
  if (!is_ours) {
    throw Error(ExitCode::Unavailable,
                "[forward] activations cannot be stored on the host (Offload::activations_on_host) "
                "in a process of Python, whose autograd has hooks of its own: use "
                "torch.autograd.graph.save_on_cpu there.");
  }
}

}  // namespace

std::shared_ptr<void> save_on_host(UnitUse& use) {
  ActivationStore* const store = use.step->model().offload->activations();
  Destination here;
  if (store != nullptr && !use.unit.is_root() && !inside_backward()) {
    install_engine();
    here = {store, std::make_shared<SavedByCall>()};
    use.saved = here.call;
  }
  const Destination around = std::exchange(current(), here);
  return {nullptr, [around, here](void*) {
            current() = around;
            if (here.store != nullptr) {
              quietly([&here] { here.store->end(here.call); });
            }
          }};
}

}  // namespace sherd::detail
