#include "llm/gguf/changes.h"

#include <ATen/TensorOperators.h>

namespace llm::gguf {
namespace {

// Rows [a · b · rest] in the order in which b comes before a.
at::Tensor swapped_rows(const at::Tensor& values, std::int64_t outer, std::int64_t a,
                        std::int64_t b) {
  return values.reshape({outer, a, b, -1}).transpose(1, 2).reshape(values.sizes()).contiguous();
}

std::int64_t heads_of(Change change, const Heads& heads) {
  return change == Change::KeyRows ? heads.keys : heads.queries;
}

}  // namespace

bool can_change(const std::vector<std::int64_t>& shape, Change change, const Heads& heads) {
  switch (change) {
    case Change::QueryRows:
    case Change::KeyRows:
      return shape[0] % (2 * heads_of(change, heads)) == 0;
    case Change::HeadsLast:
      return shape[0] % (3 * heads.queries) == 0;
    case Change::None:
    case Change::PlusOne:
    case Change::Transposed:
      break;
  }
  return true;
}

at::Tensor to_gguf(const at::Tensor& values, Change change, const Heads& heads) {
  const std::int64_t n = heads_of(change, heads);
  switch (change) {
    case Change::None:
      break;
    case Change::QueryRows:
    case Change::KeyRows:
      return swapped_rows(values, n, 2, values.size(0) / n / 2);
    case Change::PlusOne:
      return values + 1;
    case Change::Transposed:
      return values.dim() == 2 ? values.t().contiguous() : values;
    case Change::HeadsLast: {
      const std::int64_t head_size = values.size(0) / n / 3;
      return values.reshape({n, 3, head_size, -1})
          .transpose(0, 1)
          .reshape(values.sizes())
          .contiguous();
    }
  }
  return values;
}

at::Tensor from_gguf(const at::Tensor& values, Change change, const Heads& heads) {
  const std::int64_t n = heads_of(change, heads);
  switch (change) {
    case Change::QueryRows:
    case Change::KeyRows:
      return swapped_rows(values, n, values.size(0) / n / 2, 2);
    case Change::PlusOne:
      return values - 1;
    case Change::HeadsLast: {
      const std::int64_t head_size = values.size(0) / n / 3;
      return values.reshape({3, n, head_size, -1})
          .transpose(0, 1)
          .reshape(values.sizes())
          .contiguous();
    }
    case Change::None:
    case Change::Transposed:
      break;
  }
  return to_gguf(values, change, heads);
}

}  // namespace llm::gguf
