#pragma once
// Which kernel computes attention of which shapes, remembered for the process.

#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ops/backend.h"

namespace sherd::ops::cuda {

/// How many combinations of count and length of documents cuDNN computes for one kind of shape.
/// Each costs a plan; batches of further lengths are flash attention's.
inline constexpr std::size_t kMostCudnnLengths = 8;

/// The choices of a process. A choice is made once for each kind of shape: dtype, heads, key heads,
/// head size, ALiBi, documents of one length or of several, window, soft cap, the kernel that the
/// caller names, and what each kernel refuses. It is kept, so that recomputation takes the same
/// kernel, and so that a captured graph finds it made. Any thread.
class AttentionChoices {
 public:
  AttentionChoices() = default;
  AttentionChoices(const AttentionChoices&) = delete;
  AttentionChoices& operator=(const AttentionChoices&) = delete;
  ~AttentionChoices() = default;

  /// The kernel that computes these: Cudnn, Flash or Plain. Before cuDNN is chosen, or flash
  /// attention with a window, it computes a small trial, for which the host waits. While a graph is
  /// captured, nothing is tried: where no choice has been made, the answer is Flash or Plain.
  [[nodiscard]] AttentionKernel choose(const AttentionInputs& inputs);

  /// After `kernel` has thrown for a shape of this kind: the next kernel computes from now on.
  /// Warns once.
  void give_up(const AttentionInputs& inputs, AttentionKernel kernel, const std::string& problem);

  /// Whether `kernel` is not to be called any more for these.
  [[nodiscard]] bool is_given_up(const AttentionInputs& inputs, AttentionKernel kernel) const;

  [[nodiscard]] std::vector<AttentionChoice> all() const;

 private:
  struct Kind {
    AttentionKernel wanted = AttentionKernel::Auto;
    AttentionChoice shape;
    std::string why_not_cudnn = {};  // empty: it serves
    std::string why_not_flash = {};
    std::set<std::pair<int64_t, int64_t>> cudnn_lengths = {};  // counts and lengths
  };

  [[nodiscard]] static Kind kind_of(const AttentionInputs& inputs);
  [[nodiscard]] static bool are_same(const Kind& a, const Kind& b);
  static void choose_from(AttentionKernel first, const AttentionInputs& inputs, Kind& kind);
  // Its place in kinds_; their number if it has no choice yet.
  [[nodiscard]] std::size_t find(const AttentionInputs& inputs) const;
  [[nodiscard]] Kind& made(const AttentionInputs& inputs);

  mutable std::mutex guard_;
  std::vector<Kind> kinds_;
};

}  // namespace sherd::ops::cuda
