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

// The documents, as saved_data holds them: with their bounds on the device, where they are there.
struct KeptDocuments : torch::CustomClassHolder {
  explicit KeptDocuments(Documents of) : documents(std::move(of)) {}
  Documents documents;
};
constexpr const char* kDocuments = "documents";
constexpr const char* kKernel = "kernel";             // that computed forward
constexpr const char* kNamedKernel = "named kernel";  // that the caller names

const Documents& kept_documents(AutogradContext* context) {
  const auto capsule = context->saved_data.at(kDocuments).toCapsule();
  return c10::static_intrusive_pointer_cast<KeptDocuments>(capsule)->documents;
}

AttentionKernel kept_kernel(AutogradContext* context, const char* key) {
  return static_cast<AttentionKernel>(context->saved_data.at(key).toInt());
}

struct Attention : torch::autograd::Function<Attention> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& query,
                            const at::Tensor& key, const at::Tensor& value,
                            const Documents& documents,
                            const std::optional<at::Tensor>& alibi_slopes, AttentionKernel kernel) {
    RECORD_FUNCTION("sherd::attention", Recorded({query, documents.bounds()}));
    const at::Tensor slopes = alibi_slopes.value_or(at::Tensor());
    const AttentionOutput output =
        choose_backend(*context, query).attention({query, key, value, documents, slopes, kernel});
    context->save_for_backward(
        {query, key, value, slopes, output.log_sums,
         output.kernel == AttentionKernel::Plain ? at::Tensor() : output.mixed_TD});
    context->saved_data[kKernel] = static_cast<int64_t>(output.kernel);
    context->saved_data[kNamedKernel] = static_cast<int64_t>(kernel);
    context->saved_data[kDocuments] =
        at::IValue::make_capsule(c10::make_intrusive<KeptDocuments>(documents));
    return output.mixed_TD;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const Documents& documents = kept_documents(context);
    RECORD_FUNCTION("sherd::attention_backward", Recorded({saved[0], documents.bounds()}));
    once_differentiable("sherd::attention");
    const AttentionInputs inputs{saved[0],
                                 saved[1],
                                 saved[2],
                                 documents,
                                 /*slopes=*/saved[3],
                                 kept_kernel(context, kNamedKernel)};
    const AttentionOutput output{/*mixed_TD=*/saved[5], /*log_sums=*/saved[4],
                                 kept_kernel(context, kKernel)};
    const AttentionGradients grads =
        chosen_backend(*context).attention_backward(inputs, output, gradients[0]);
    return {grads.query, grads.key, grads.value, at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                     const Documents& documents, const std::optional<at::Tensor>& alibi_slopes,
                     AttentionKernel kernel) {
  TORCH_CHECK_VALUE(query.size(0) == documents.tokens(), "[attention] got ", query.size(0),
                    " tokens, but documents of ", documents.tokens());
  return Attention::apply(query, key, value, documents, alibi_slopes, kernel);
}

at::Tensor decode_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                            const at::Tensor& positions,
                            const std::optional<at::Tensor>& alibi_slopes) {
  return backend_of(query).decode_attention(query, key, value, positions,
                                            alibi_slopes.value_or(at::Tensor()));
}

}  // namespace sherd::ops
