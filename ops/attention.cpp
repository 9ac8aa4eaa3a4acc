#include "ops/attention.h"

#include <utility>

#include <ATen/record_function.h>
#include <torch/csrc/autograd/custom_function.h>

#include "ops/backend.h"
#include "ops/shared/gradient.h"
#include "ops/shared/recorded.h"

namespace sherd::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// What backward needs beside tensors, as saved_data holds it: the documents, with their bounds on
// the device, where they are there.
struct KeptCall : torch::CustomClassHolder {
  KeptCall(Documents within, const AttentionScores& of)
      : documents(std::move(within)), scores(of) {}
  Documents documents;
  AttentionScores scores;
};
constexpr const char* kCall = "call";
constexpr const char* kKernel = "kernel";             // that computed forward
constexpr const char* kNamedKernel = "named kernel";  // that the caller names

c10::intrusive_ptr<KeptCall> kept_call(AutogradContext* context) {
  return c10::static_intrusive_pointer_cast<KeptCall>(context->saved_data.at(kCall).toCapsule());
}

AttentionKernel kept_kernel(AutogradContext* context, const char* key) {
  return static_cast<AttentionKernel>(context->saved_data.at(key).toInt());
}

struct Attention : torch::autograd::Function<Attention> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& query,
                            const at::Tensor& key, const at::Tensor& value,
                            const Documents& documents,
                            const std::optional<at::Tensor>& alibi_slopes, AttentionKernel kernel,
                            const AttentionScores& scores) {
    RECORD_FUNCTION("sherd::attention", Recorded({query, documents.bounds(), scores.window}));
    const at::Tensor slopes = alibi_slopes.value_or(at::Tensor());
    const AttentionOutput output =
        choose_backend(*context, query)
            .attention({query, key, value, documents, slopes, kernel, scores});
    context->save_for_backward(
        {query, key, value, slopes, output.log_sums,
         output.kernel == AttentionKernel::Plain ? at::Tensor() : output.mixed_TD});
    context->saved_data[kKernel] = static_cast<int64_t>(output.kernel);
    context->saved_data[kNamedKernel] = static_cast<int64_t>(kernel);
    context->saved_data[kCall] =
        at::IValue::make_capsule(c10::make_intrusive<KeptCall>(documents, scores));
    return output.mixed_TD;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const auto call = kept_call(context);
    RECORD_FUNCTION("sherd::attention_backward",
                    Recorded({saved[0], call->documents.bounds(), call->scores.window}));
    once_differentiable("sherd::attention");
    const AttentionInputs inputs{saved[0],
                                 saved[1],
                                 saved[2],
                                 call->documents,
                                 /*slopes=*/saved[3],
                                 kept_kernel(context, kNamedKernel),
                                 call->scores};
    const AttentionOutput output{/*mixed_TD=*/saved[5], /*log_sums=*/saved[4],
                                 kept_kernel(context, kKernel)};
    const AttentionGradients grads =
        chosen_backend(*context).attention_backward(inputs, output, gradients[0]);
    return {grads.query,  grads.key,    grads.value, at::Tensor(),
            at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

void check_scores(const AttentionScores& scores, bool has_slopes) {
  TORCH_CHECK_VALUE(scores.scale >= 0 && scores.window >= 0 && scores.soft_cap >= 0,
                    "[attention] got a scale of ", scores.scale, ", a window of ", scores.window,
                    " tokens and a soft cap of ", scores.soft_cap,
                    "; expected none below 0, and 0 for the default");
  TORCH_CHECK_VALUE(scores.soft_cap == 0 || !has_slopes,
                    "[attention] got a soft cap of scores and ALiBi's slopes, which are not "
                    "implemented together; leave one of them out");
}

}  // namespace

at::Tensor attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                     const Documents& documents, const std::optional<at::Tensor>& alibi_slopes,
                     AttentionKernel kernel, const AttentionScores& scores) {
  check_scores(scores, alibi_slopes.has_value());
  TORCH_CHECK_VALUE(query.size(0) == documents.tokens(), "[attention] got ", query.size(0),
                    " tokens, but documents of ", documents.tokens());
  AttentionScores needed = scores;
  if (needed.window >= documents.longest()) {
    needed.window = 0;  // which more kernels serve
  }
  return Attention::apply(query, key, value, documents, alibi_slopes, kernel, needed);
}

at::Tensor decode_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                            const at::Tensor& positions,
                            const std::optional<at::Tensor>& alibi_slopes,
                            const AttentionScores& scores) {
  check_scores(scores, alibi_slopes.has_value());
  return backend_of(query).decode_attention(query, key, value, positions,
                                            alibi_slopes.value_or(at::Tensor()), scores);
}

}  // namespace sherd::ops
