// Products of 16-bit matrices for processors that multiply fp32 alone: 16 bits lie in memory, and
// are widened by blocks that stay in the cache until the product has read them.

#include <algorithm>

#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>

#include "ops/cpu/dispatch.h"
#include "ops/cpu/onednn_products.h"
#include "ops/cpu/products.h"

namespace sherd::ops::cpu {
namespace {

constexpr int64_t kBlockFloats = 1 << 19;  // of a block of an operand: 2 MiB
constexpr int64_t kLeastBlock = 256;       // shorter ones slow the product down

bool has_dense_rows(const at::Tensor& matrix) {
  return matrix.stride(1) == 1 || matrix.size(1) <= 1;
}

// Rows of 16 bits, one after the other in `room`.
at::Tensor widened_rows(const at::Tensor& matrix, const at::Tensor& room) {
  const int64_t rows = matrix.size(0), width = matrix.size(1);
  at::Tensor out = room.narrow(0, 0, rows * width).view({rows, width});
  with_dtype(matrix, [&](auto type) {
    using T = decltype(type);
    const T* from = matrix.const_data_ptr<T>();
    float* to = mutable_data<float>(out);
    for_rows(rows, width, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        kernels<T>().to_floats(from + r * matrix.stride(0), to + r * width, width);
      }
    });
  });
  return out;
}

// In fp32 and in the order of its strides.
at::Tensor widened(const at::Tensor& matrix, const at::Tensor& room) {
  if (has_dense_rows(matrix)) {
    return widened_rows(matrix, room);
  }
  if (has_dense_rows(matrix.t())) {
    return widened_rows(matrix.t(), room).t();
  }
  return widened_rows(matrix.contiguous(), room);
}

void round_rows(const at::Tensor& out, const at::Tensor& floats) {
  const int64_t width = out.size(1);
  with_dtype(out, [&](auto type) {
    using T = decltype(type);
    T* to = out.mutable_data_ptr<T>();
    const float* from = data<float>(floats);
    for_rows(out.size(0), width, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        kernels<T>().from_floats(from + r * width, to + r * out.stride(0), width);
      }
    });
  });
}

at::Tensor floats(int64_t numel, const at::Tensor& like) {
  return at::empty({numel}, like.options().dtype(at::kFloat));
}

// Room for a product that is rounded to 16 bits: none where the output is fp32.
at::Tensor sum_room(const at::Tensor& out, int64_t numel) {
  return out.scalar_type() == at::kFloat ? at::Tensor() : floats(numel, out);
}

// What a block of the product is computed in: the output itself where it is fp32, else room in the
// order of its strides, which finish() rounds.
class Target {
 public:
  Target(const at::Tensor& out, const at::Tensor& room) : out_(out), sum_(out) {
    if (out.scalar_type() == at::kFloat) {
      return;
    }
    transposed_ = !has_dense_rows(out) && has_dense_rows(out.t());
    const at::Tensor part = room.narrow(0, 0, out.numel());
    sum_ = transposed_ ? part.view({out.size(1), out.size(0)}).t() : part.view(out.sizes());
  }
  [[nodiscard]] at::Tensor& sum() { return sum_; }

  void finish(const at::Tensor& bias) {
    if (bias.defined()) {  // in 16 bits it is the output itself, which LibTorch would widen unseen
      sum_.add_(bias.scalar_type() == at::kFloat ? bias
                                                 : widened(bias, floats(bias.numel(), bias)));
    }
    if (sum_.is_same(out_)) {
      return;
    }
    if (transposed_) {
      round_rows(out_.t(), sum_.t());
    } else if (has_dense_rows(out_)) {
      round_rows(out_, sum_);
    } else {
      out_.copy_(sum_);
    }
  }

 private:
  at::Tensor out_;
  at::Tensor sum_;
  bool transposed_ = false;
};

// How much of a dimension of `length` a block takes, where each step of it has `other` numbers.
int64_t block_of(int64_t length, int64_t other) {
  return std::min(length, std::max(kLeastBlock, kBlockFloats / std::max<int64_t>(other, 1)));
}

// Blocks of columns of b and of the output, with the whole of a.
void by_columns(const at::Tensor& out, const at::Tensor& bias, const at::Tensor& a,
                const at::Tensor& b) {
  const int64_t m = a.size(0), k = a.size(1), n = b.size(1);
  const int64_t block = block_of(n, k);
  const at::Tensor whole = widened(a, floats(m * k, a));
  const at::Tensor room = floats(k * block, a), part_room = sum_room(out, m * block);
  for (int64_t begin = 0; begin < n; begin += block) {
    const int64_t count = std::min(block, n - begin);
    Target target(out.narrow(1, begin, count), part_room);
    float_mm(target.sum(), whole, widened(b.narrow(1, begin, count), room));
    const bool along = bias.defined() && bias.size(1) == n;
    target.finish(along ? bias.narrow(1, begin, count) : bias);
  }
}

// Blocks of what is summed over.
void by_terms(const at::Tensor& out, const at::Tensor& bias, const at::Tensor& a,
              const at::Tensor& b) {
  const int64_t m = a.size(0), k = a.size(1), n = b.size(1);
  const int64_t block = block_of(k, m + n);
  const at::Tensor a_room = floats(m * block, a), b_room = floats(block * n, a);
  Target target(out, sum_room(out, m * n));
  for (int64_t begin = 0; begin < k; begin += block) {
    const int64_t count = std::min(block, k - begin);
    const at::Tensor left = widened(a.narrow(1, begin, count), a_room);
    const at::Tensor right = widened(b.narrow(0, begin, count), b_room);
    if (begin == 0) {
      float_mm(target.sum(), left, right);
    } else {
      target.sum().addmm_(left, right);
    }
  }
  target.finish(bias);
}

// Which dimension is cut: the longest, so that what is held whole is the least.
enum class Cut { Terms, Columns, Rows };
Cut cut_of(int64_t m, int64_t k, int64_t n) {
  return k >= std::max(m, n) ? Cut::Terms : n >= m ? Cut::Columns : Cut::Rows;
}

// What by_columns() and by_terms() take.
int64_t floats_by_columns(bool rounded, int64_t m, int64_t k, int64_t n) {
  return m * k + block_of(n, k) * (k + (rounded ? m : 0));
}
int64_t floats_by_terms(bool rounded, int64_t m, int64_t k, int64_t n) {
  return block_of(k, m + n) * (m + n) + (rounded ? m * n : 0);
}

}  // namespace

int64_t room_bytes_in_floats(bool rounded, int64_t m, int64_t k, int64_t n) {
  constexpr auto kFloatBytes = static_cast<int64_t>(sizeof(float));
  switch (cut_of(m, k, n)) {
    case Cut::Terms:
      return kFloatBytes * floats_by_terms(rounded, m, k, n);
    case Cut::Columns:
      return kFloatBytes * floats_by_columns(rounded, m, k, n);
    case Cut::Rows:
      return kFloatBytes * floats_by_columns(rounded, n, k, m);
  }
  return 0;
}

void mm_in_floats(const at::Tensor& out, const at::Tensor& bias, const at::Tensor& a,
                  const at::Tensor& b) {
  const int64_t m = a.size(0), k = a.size(1), n = b.size(1);
  if (k == 0) {
    out.zero_();
    if (bias.defined()) {
      out.add_(bias);
    }
    return;
  }
  switch (cut_of(m, k, n)) {
    case Cut::Terms:
      return by_terms(out, bias, a, b);
    case Cut::Columns:
      return by_columns(out, bias, a, b);
    case Cut::Rows:
      return by_columns(out.t(), bias.defined() ? bias.t() : bias, b.t(), a.t());
  }
}

}  // namespace sherd::ops::cpu
