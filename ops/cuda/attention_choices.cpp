#include "ops/cuda/attention_choices.h"

#include <algorithm>
#include <tuple>

#include <c10/util/Exception.h>

#include "ops/cuda/attention_trial.h"
#include "ops/cuda/cudnn_attention.h"
#include "ops/cuda/dispatch.h"
#include "ops/cuda/flash_attention.h"
#include "ops/fused_attention.h"

namespace sherd::ops::cuda {
namespace {

bool is_faster_by_cudnn(c10::Device device) {
  return prefers_cudnn_attention(compute_capability(device) / 10);
}

std::string why_not_cudnn(const AttentionInputs& inputs) {
  std::string why = why_not_cudnn_attention(inputs);
  const bool is_named = inputs.kernel == AttentionKernel::Cudnn;
  return why.empty() && !is_named && !is_faster_by_cudnn(inputs.query.device())
             ? "auto takes it only on compute capability 9 and 10"
             : why;
}

void add_reason(std::string& why, AttentionKernel kernel, const std::string& reason) {
  why += (why.empty() ? "" : "; ") +
         std::string(kernel == AttentionKernel::Cudnn ? "not cuDNN: " : "not flash attention: ") +
         reason;
}

AttentionKernel after(AttentionKernel kernel) {
  return kernel == AttentionKernel::Cudnn ? AttentionKernel::Flash : AttentionKernel::Plain;
}

// Whether the kernel computes a trial first: LibTorch may be built without what it is asked for.
bool needs_trial(const AttentionInputs& inputs, AttentionKernel kernel) {
  return kernel == AttentionKernel::Cudnn || inputs.scores.window != 0;
}

// Where cuDNN cannot be asked now, and nothing can be tried.
AttentionKernel without_cudnn(const AttentionInputs& inputs) {
  const bool serves_flash = inputs.kernel != AttentionKernel::Plain &&
                            !needs_trial(inputs, AttentionKernel::Flash) &&
                            why_not_flash_attention(inputs).empty();
  return serves_flash ? AttentionKernel::Flash : AttentionKernel::Plain;
}

}  // namespace

AttentionChoices::Kind AttentionChoices::kind_of(const AttentionInputs& inputs) {
  const at::Tensor& query = inputs.query;
  return {.wanted = inputs.kernel,
          .shape = {.kernel = AttentionKernel::Auto,
                    .heads = query.size(1),
                    .key_heads = inputs.key.size(1),
                    .head_size = query.size(2),
                    .dtype = query.scalar_type(),
                    .has_alibi = inputs.slopes.defined(),
                    .has_equal_lengths = inputs.documents.have_equal_lengths(),
                    .window = inputs.scores.window,
                    .has_soft_cap = inputs.scores.soft_cap != 0,
                    .why = {}},
          .why_not_cudnn = why_not_cudnn(inputs),
          .why_not_flash = why_not_flash_attention(inputs)};
}

bool AttentionChoices::are_same(const Kind& a, const Kind& b) {
  const auto parts = [](const Kind& kind) {
    const AttentionChoice& shape = kind.shape;
    return std::tie(kind.wanted, kind.why_not_cudnn, kind.why_not_flash, shape.heads,
                    shape.key_heads, shape.head_size, shape.dtype, shape.has_alibi,
                    shape.has_equal_lengths, shape.window, shape.has_soft_cap);
  };
  return parts(a) == parts(b);
}

// The first one from `first` on that serves.
void AttentionChoices::choose_from(AttentionKernel first, const AttentionInputs& inputs,
                                   Kind& kind) {
  AttentionChoice& shape = kind.shape;
  for (shape.kernel = std::max(first, AttentionKernel::Cudnn);
       shape.kernel != AttentionKernel::Plain; shape.kernel = after(shape.kernel)) {
    std::string reason =
        shape.kernel == AttentionKernel::Cudnn ? kind.why_not_cudnn : kind.why_not_flash;
    if (reason.empty() && needs_trial(inputs, shape.kernel)) {
      reason = problem_of_attention(inputs, shape.kernel);
    }
    if (reason.empty()) {
      return;
    }
    add_reason(shape.why, shape.kernel, reason);
  }
}

std::size_t AttentionChoices::find(const AttentionInputs& inputs) const {
  const Kind kind = kind_of(inputs);
  const auto found = std::find_if(kinds_.begin(), kinds_.end(),
                                  [&](const Kind& known) { return are_same(known, kind); });
  return static_cast<std::size_t>(found - kinds_.begin());
}

AttentionChoices::Kind& AttentionChoices::made(const AttentionInputs& inputs) {
  if (const std::size_t place = find(inputs); place < kinds_.size()) {
    return kinds_[place];
  }
  Kind kind = kind_of(inputs);
  choose_from(inputs.kernel, inputs, kind);
  return kinds_.emplace_back(std::move(kind));
}

AttentionKernel AttentionChoices::choose(const AttentionInputs& inputs) {
  const std::lock_guard lock(guard_);
  const bool is_captured = is_capturing(inputs.query.device());
  if (is_captured && find(inputs) == kinds_.size()) {
    return without_cudnn(inputs);
  }
  Kind& kind = made(inputs);
  if (kind.shape.kernel != AttentionKernel::Cudnn) {
    return kind.shape.kernel;
  }
  const std::pair lengths(inputs.documents.count(), inputs.documents.longest());
  if (kind.cudnn_lengths.contains(lengths)) {
    return AttentionKernel::Cudnn;
  }
  if (is_captured) {
    return without_cudnn(inputs);
  }
  if (kind.cudnn_lengths.size() == kMostCudnnLengths) {
    TORCH_WARN_ONCE("attention: cuDNN computes batches of the first ", kMostCudnnLengths,
                    " lengths; those of further lengths go to flash attention, which needs no plan "
                    "for each");
    return without_cudnn(inputs);
  }
  kind.cudnn_lengths.insert(lengths);
  return AttentionKernel::Cudnn;
}

void AttentionChoices::give_up(const AttentionInputs& inputs, AttentionKernel kernel,
                               const std::string& problem) {
  const std::lock_guard lock(guard_);
  Kind& kind = made(inputs);
  if (kind.shape.kernel > kernel) {
    return;
  }
  add_reason(kind.shape.why, kernel, "it failed: " + problem);
  choose_from(after(kernel), inputs, kind);
  TORCH_WARN("attention is computed by ", text_of(kind.shape));
}

bool AttentionChoices::is_given_up(const AttentionInputs& inputs, AttentionKernel kernel) const {
  const std::lock_guard lock(guard_);
  const std::size_t place = find(inputs);
  return place < kinds_.size() && kinds_[place].shape.kernel > kernel;
}

std::vector<AttentionChoice> AttentionChoices::all() const {
  const std::lock_guard lock(guard_);
  std::vector<AttentionChoice> choices;
  for (const Kind& kind : kinds_) {
    choices.push_back(kind.shape);
  }
  return choices;
}

}  // namespace sherd::ops::cuda
