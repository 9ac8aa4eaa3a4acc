#pragma once
// Master shards in the hands of an optimizer that the engine does not know.

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/ordered_dict.h>

namespace sherd::detail {

class FlatSegment;
class Runtime;

/// Leaf views of the master shards, one a trainable parameter, for optimizers of LibTorch.
///
/// [Note: Masters that others write]
/// Those optimizers write parameters through `.data()`, which leaves no trace (no version changes),
/// and step whenever they like. So, once views have been handed out:
/// - whenever a step could follow (at the end of a backward, of a forward that no backward follows,
///   of a look at full parameters; when the last graph that waited for a backward is freed) ranks
///   wait until nobody reads the shards any more: the *update window* opens;
/// - before anything is gathered again the masters are published as if they had changed: it closes.
/// In fp32 that costs counters, in bf16 one pass over this rank's shard.
class OptimViews {
 public:
  explicit OptimViews(Runtime& runtime) : runtime_(runtime) {}

  /// Makes the views at the first call. Collective.
  [[nodiscard]] torch::OrderedDict<std::string, at::Tensor> hand_out();
  [[nodiscard]] bool handed_out() const { return !views_.empty(); }
  [[nodiscard]] bool awaits_update_window() const { return handed_out() && !window_is_open_; }

  // What follows does nothing before views have been handed out.

  /// Collective.
  void open_update_window();
  /// Collective.
  void close_update_window();
  /// After an exception, when nobody can be waited for: a step may follow all the same.
  void expect_update();
  /// Before a backward: forgets the gradients of views whose `.grad` has been reset, and takes
  /// those that have been replaced.
  void take_gradient_changes();
  /// After a backward: points each `.grad` at the gradient shard; a parameter that no rank used
  /// has none. Collective.
  void show_gradients();
  void forget_gradients();

 private:
  struct View {
    std::string name;
    at::Tensor tensor;  ///< [n], a leaf that requires gradients
    FlatSegment* segment = nullptr;
    size_t place = 0;                       ///< in the segment
    int64_t start = 0;                      ///< of its elements in the segment's shard
    const at::Tensor* parameter = nullptr;  ///< the module's own
  };
  void make_views();
  [[nodiscard]] static at::Tensor gradient_of(const View& view);

  Runtime& runtime_;
  std::vector<View> views_;
  bool window_is_open_ = false;
};

}  // namespace sherd::detail
