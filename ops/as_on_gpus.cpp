#include "ops/as_on_gpus.h"

#include <ATen/ops/empty.h>

#include "ops/cpu/cpu_backend.h"
#include "ops/fused_attention.h"
#include "ops/plain/plain_backend.h"

namespace sherd::ops {
namespace {

at::Tensor empty_as(const at::Tensor& tensor) {
  return at::empty(tensor.sizes(), tensor.options());
}

at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& /*up*/) {
  return empty_as(gate);
}

// Of columns, columns of one matrix.
SwiGluGradients swiglu_backward(const at::Tensor& /*grad*/, const at::Tensor& gate,
                                const at::Tensor& up) {
  if (gate.is_contiguous()) {
    return {empty_as(gate), empty_as(up)};
  }
  const int64_t width = gate.size(1);
  const at::Tensor both = at::empty({gate.size(0), 2 * width}, gate.options());
  return {both.narrow(1, 0, width), both.narrow(1, width, width)};
}

// The product is where the gradient was.
SwiGluGradients swiglu_backward_with_product(at::Tensor& grad, const at::Tensor& gate,
                                             const at::Tensor& up) {
  return swiglu_backward(grad, gate, up);
}

const Backend& on_cpu() {
  static const Backend backend = cpu::cpu_backend(plain::plain_backend());
  return backend;
}

// Whether fused attention serves them: LibTorch's flash attention, or cuDNN's.
bool serves_fused_attention(const AttentionInputs& inputs) {
  const bool has_alibi = inputs.slopes.defined();
  const int64_t longest = inputs.documents.longest();
  return inputs.kernel != AttentionKernel::Plain && inputs.query.element_size() == 2 &&
         longest > 1 && inputs.scores.soft_cap == 0 &&
         (!has_alibi || longest <= kLongestAlibiDocument) &&
         serves_flash_heads(inputs.query.size(2), has_alibi);
}

at::Tensor empty_heads(const at::Tensor& heads, int64_t count, int64_t width) {
  return at::empty({heads.size(0), count, width}, heads.options());
}

// As fused attention reads them, which may be copies with ALiBi's columns.
struct ReadHeads {
  explicit ReadHeads(const AttentionInputs& inputs)
      : width(inputs.query.size(2) + (inputs.slopes.defined() ? kAlibiColumns : 0)) {
    if (inputs.slopes.defined()) {
      query = empty_heads(inputs.query, inputs.query.size(1), width);
      key = empty_heads(inputs.key, inputs.key.size(1), width);
      value = empty_heads(inputs.value, inputs.value.size(1), width);
    }
  }
  int64_t width;
  at::Tensor query, key, value;  // undefined where nothing is copied
};

AttentionOutput attention(const AttentionInputs& inputs) {
  if (!serves_fused_attention(inputs)) {
    return on_cpu().attention(inputs);
  }
  const at::Tensor& query = inputs.query;
  const ReadHeads read(inputs);
  const at::Tensor mixed = empty_heads(query, query.size(1), read.width);
  const at::Tensor log_sums =
      at::empty({query.size(1), query.size(0)}, query.options().dtype(at::kFloat));
  const int64_t columns = query.size(1) * query.size(2);
  const bool is_copied = inputs.slopes.defined();
  return {is_copied ? at::empty({query.size(0), columns}, query.options())
                    : mixed.reshape({query.size(0), columns}),
          log_sums, AttentionKernel::Flash};  // cuDNN keeps as much
}

// Beside its results: the gradient of queries in fp32, whose heads are padded to a multiple of 32
// and whose documents to one of 128 rows; and where heads share keys, gradients of keys and values
// for each head. PyTorch: `mha_varlen_bwd`. cuDNN's is assumed to take as much.
AttentionGradients attention_backward(const AttentionInputs& inputs, const AttentionOutput& output,
                                      const at::Tensor& grad_mixed_TD) {
  if (output.kernel == AttentionKernel::Plain) {
    return on_cpu().attention_backward(inputs, output, grad_mixed_TD);
  }
  constexpr int64_t kHeadUnit = 32, kRows = 128;
  const at::Tensor &query = inputs.query, &key = inputs.key;
  const int64_t heads = query.size(1), head = query.size(2), shared = key.size(1);
  const ReadHeads read(inputs);
  at::Tensor grad_read, mixed_read;
  if (inputs.slopes.defined()) {
    grad_read = empty_heads(query, heads, read.width);
    mixed_read = empty_heads(query, heads, read.width);
  }
  const at::Tensor of_query = empty_heads(query, heads, read.width);
  const at::Tensor of_key = empty_heads(key, shared, read.width);
  const at::Tensor of_value = empty_heads(key, shared, read.width);
  const int64_t padded = (read.width + kHeadUnit - 1) / kHeadUnit * kHeadUnit;
  const at::Tensor sums =
      at::empty({query.size(0) + kRows * inputs.documents.count(), heads, padded},
                query.options().dtype(at::kFloat));
  at::Tensor key_of_each, value_of_each;
  if (shared != heads) {
    key_of_each = empty_heads(query, heads, read.width);
    value_of_each = empty_heads(query, heads, read.width);
  }
  const auto without_columns = [&](const at::Tensor& of) { return of.narrow(2, 0, head); };
  return {without_columns(of_query), without_columns(of_key), without_columns(of_value)};
}

const Backend& on_meta() {
  static const Backend backend = [] {
    Backend like = on_cpu();
    like.attention = &attention;
    like.attention_backward = &attention_backward;
    like.joins_products = true;
    like.dequantized_numbers = plain::plain_backend().dequantized_numbers;
    like.swiglu = &swiglu;
    like.swiglu_backward = &swiglu_backward;
    like.swiglu_backward_with_product = &swiglu_backward_with_product;
    like.geglu = &swiglu;
    like.geglu_backward = &swiglu_backward;
    like.geglu_backward_with_product = &swiglu_backward_with_product;
    return like;
  }();
  return backend;
}

}  // namespace

AsOnGpus::AsOnGpus() : with_(on_meta()) {}

}  // namespace sherd::ops
