#include "llm/bench/matmul_limit.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <functional>
#include <limits>

#include <ATen/core/Tensor.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/randn.h>
#include <c10/core/InferenceMode.h>

#include "ops/cpu/onednn_products.h"
#include "ops/cpu/products.h"

namespace llm::bench {

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::int64_t kCycledBytes = 128 << 20;
constexpr int kRepeats = 5;
constexpr int kLeastRepeats = 3;
constexpr double kEnoughSeconds = 0.5;  // of one form
constexpr double kHopeless = 1.15;      // times the best form

// One way to compute a product; the argument says which copy of the operands is its turn.
using Form = std::function<void(int)>;

double seconds_of(const Form& form, int turn) {
  const auto start = Clock::now();
  form(turn);
  return std::chrono::duration<double>(Clock::now() - start).count();
}

double median_seconds(const Form& form) {
  std::vector<double> times;
  double all = 0;
  for (int i = 1; i <= kRepeats && (i <= kLeastRepeats || all < kEnoughSeconds); ++i) {
    times.push_back(seconds_of(form, i));
    all += times.back();
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

// The median of the fastest form. The first run of each makes the product's code; those that are
// far from the best then are not run again.
double best_seconds(const std::vector<Form>& forms) {
  constexpr double kMostForCode = 0.2;
  std::vector<double> firsts;
  double least = std::numeric_limits<double>::infinity();
  for (const Form& form : forms) {
    double first = seconds_of(form, 0);
    if (first < 2 * least + kMostForCode) {
      first = std::min(first, seconds_of(form, 0));
    }
    firsts.push_back(first);
    least = std::min(least, first);
  }
  double best = std::numeric_limits<double>::infinity();
  for (size_t f = 0; f < forms.size(); ++f) {
    if (firsts[f] <= kHopeless * least) {
      best = std::min(best, median_seconds(forms[f]));
    }
  }
  return best;
}

// A few random rows again and again: to draw all would take longer than to multiply.
at::Tensor random(at::IntArrayRef sizes, c10::ScalarType dtype) {
  constexpr std::int64_t kDrawnRows = 64;
  const std::int64_t columns = sizes.back();
  const at::Tensor drawn = at::randn({kDrawnRows, columns}, at::kFloat).to(dtype);
  const at::Tensor all = at::empty(sizes, drawn.options());
  at::Tensor rows = all.view({-1, columns});
  for (std::int64_t row = 0; row < rows.size(0); row += kDrawnRows) {
    const std::int64_t count = std::min(kDrawnRows, rows.size(0) - row);
    rows.narrow(0, row, count).copy_(drawn.narrow(0, 0, count));
  }
  return all;
}

// What a step in `dtype` may multiply in: 16 bits where the processor has them, and fp32. That may
// be faster then for small products alone, and with large ones takes longer than all the rest.
std::vector<c10::ScalarType> product_dtypes(c10::ScalarType dtype, const MatmulShape& shape) {
  constexpr double kLarge = 1e9;
  using sherd::ops::cpu::isa;
  using sherd::ops::cpu::multiplies;
  if (dtype == c10::kFloat || !multiplies(dtype, isa())) {
    return {c10::kFloat};
  }
  const double operations = static_cast<double>(shape.rows) * static_cast<double>(shape.inputs) *
                            static_cast<double>(shape.outputs);
  return operations > kLarge ? std::vector{dtype} : std::vector{dtype, c10::kFloat};
}

// Copies of a matrix, all touched: as many as are worth cycling through memory.
class Copies {
 public:
  Copies(at::IntArrayRef sizes, c10::ScalarType dtype) {
    const auto bytes = sizes[0] * sizes[1] * static_cast<std::int64_t>(elementSize(dtype));
    const std::int64_t copies =
        std::clamp<std::int64_t>(kCycledBytes / std::max<std::int64_t>(bytes, 1), 1, kRepeats + 1);
    for (std::int64_t i = 0; i < copies; ++i) {
      all_.push_back(random(sizes, dtype));
    }
  }
  [[nodiscard]] at::Tensor& at_turn(int i) { return all_[static_cast<size_t>(i) % all_.size()]; }

 private:
  std::vector<at::Tensor> all_;
};

// The operands of a linear map, in one dtype.
struct LinearOperands {
  LinearOperands(const MatmulShape& shape, c10::ScalarType dtype)
      : input(random({shape.rows, shape.inputs}, dtype)),
        output(random({shape.rows, shape.outputs}, dtype)),
        weights({shape.outputs, shape.inputs}, dtype),
        gradients({shape.outputs, shape.inputs}, dtype) {}
  at::Tensor input;
  at::Tensor output;
  Copies weights;
  Copies gradients;
};

// The ways to compute out = a · b: LibTorch's own, and oneDNN's where that is another.
using Product = void (*)(at::Tensor& out, const at::Tensor& a, const at::Tensor& b);
std::vector<Product> products_of(c10::ScalarType dtype, Product by_libtorch) {
  std::vector<Product> products = {by_libtorch};
  if (dtype == c10::kFloat && sherd::ops::cpu::onednn_multiplies_floats(sherd::ops::cpu::isa())) {
    products.push_back([](at::Tensor& out, const at::Tensor& a, const at::Tensor& b) {
      sherd::ops::cpu::onednn_mm(out, a, b);
    });
  }
  return products;
}

// out = a · b and outᵀ = bᵀ · aᵀ, the latter into memory of its own order.
void add_forms(std::vector<Form>& forms, const std::function<at::Tensor&(int)>& out,
               const std::function<at::Tensor(int)>& a, const std::function<at::Tensor(int)>& b) {
  at::Tensor turned = at::empty({out(0).size(1), out(0).size(0)}, out(0).options()).fill_(0);
  const Product by_libtorch = [](at::Tensor& c, const at::Tensor& l, const at::Tensor& r) {
    at::mm_out(c, l, r);
  };
  for (const Product product : products_of(turned.scalar_type(), by_libtorch)) {
    forms.emplace_back([=](int i) { product(out(i), a(i), b(i)); });
    forms.emplace_back([=](int i) mutable { product(turned, b(i).t(), a(i).t()); });
  }
}

// Forward, towards the input, and towards the weight; each weight and its gradient in turn.
double linear_seconds(const MatmulShape& shape, c10::ScalarType dtype) {
  using sherd::ops::cpu::head_logits;
  std::vector<Form> forward, to_input, to_weight;
  std::deque<LinearOperands> kept;  // whose addresses the forms hold
  for (const c10::ScalarType product_dtype : product_dtypes(dtype, shape)) {
    LinearOperands& x = kept.emplace_back(shape, product_dtype);
    const auto weight = [&x](int i) -> at::Tensor { return x.weights.at_turn(i); };
    const auto turned_weight = [&x](int i) { return x.weights.at_turn(i).t(); };
    const auto input = [&x](int) -> at::Tensor& { return x.input; };
    const auto output = [&x](int) -> at::Tensor& { return x.output; };
    const auto turned_output = [&x](int) { return x.output.t(); };
    add_forms(
        to_weight, [&x](int i) -> at::Tensor& { return x.gradients.at_turn(i); }, turned_output,
        input);
    add_forms(to_input, input, output, weight);
    add_forms(forward, output, input, turned_weight);
    forward.emplace_back([&x](int i) { head_logits(x.output, x.input, x.weights.at_turn(i)); });
  }
  return best_seconds(forward) + best_seconds(to_input) +
         (shape.is_frozen ? 0 : best_seconds(to_weight));
}

// The same of batches: out = a · b and, transposed, outᵀ = bᵀ · aᵀ.
void add_batched_forms(std::vector<Form>& forms, at::Tensor out, const at::Tensor& a,
                       const at::Tensor& b) {
  at::Tensor turned = at::empty({out.size(0), out.size(2), out.size(1)}, out.options()).fill_(0);
  const Product by_libtorch = [](at::Tensor& c, const at::Tensor& l, const at::Tensor& r) {
    at::bmm_out(c, l, r);
  };
  for (const Product product : products_of(out.scalar_type(), by_libtorch)) {
    forms.emplace_back([=](int) mutable { product(out, a, b); });
    forms.emplace_back([=](int) mutable { product(turned, b.transpose(1, 2), a.transpose(1, 2)); });
  }
}

// Attention's products have three forms, of the same operations each, and each form is used once
// forward or backward for both scores and what they mix: of queries and keys, of scores and values,
// of transposed scores and queries.
double batched_seconds(const MatmulShape& shape, c10::ScalarType dtype) {
  std::vector<Form> mix, sum_up, score;
  for (const c10::ScalarType product_dtype : product_dtypes(dtype, shape)) {
    const at::Tensor queries = random({shape.batch, shape.rows, shape.inputs}, product_dtype);
    const at::Tensor keys = random({shape.batch, shape.outputs, shape.inputs}, product_dtype);
    const at::Tensor scores = random({shape.batch, shape.rows, shape.outputs}, product_dtype);
    const at::Tensor mixed = at::empty(queries.sizes(), queries.options());
    const at::Tensor grad_keys = at::empty(keys.sizes(), keys.options());
    add_batched_forms(mix, mixed, scores, keys);
    add_batched_forms(sum_up, grad_keys, scores.transpose(1, 2), queries);
    add_batched_forms(score, scores, queries, keys.transpose(1, 2));
  }
  return best_seconds(mix) + best_seconds(sum_up) + best_seconds(score);
}

}  // namespace

double matmul_seconds(const std::vector<MatmulShape>& shapes, c10::ScalarType dtype) {
  const c10::InferenceMode no_gradients;
  double seconds = 0;
  for (const MatmulShape& shape : shapes) {
    const double once =
        shape.batch > 1 ? batched_seconds(shape, dtype) : linear_seconds(shape, dtype);
    seconds += once * static_cast<double>(shape.count);
  }
  return seconds;
}

double matmul_operations(const std::vector<MatmulShape>& shapes) {
  double operations = 0;
  for (const MatmulShape& shape : shapes) {
    const double directions = shape.is_frozen ? 2 : 3;
    operations += directions * 2.0 * static_cast<double>(shape.rows) *
                  static_cast<double>(shape.inputs) * static_cast<double>(shape.outputs) *
                  static_cast<double>(shape.count * shape.batch);
  }
  return operations;
}

}  // namespace llm::bench
