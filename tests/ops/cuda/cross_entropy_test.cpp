// Cross-entropy of ops/cuda beside fp64, played in several orders of threads.

#include "ops/cuda/kernels/cross_entropy.cuh"

#include <limits>

#include <ATen/ops/tensor.h>

#include "tests/ops/cuda/played.h"

namespace sherd::ops::cuda {
namespace {

using namespace test;  // NOLINT(google-build-using-namespace)

constexpr int kLossThreads = 64;

template <class T>
class CrossEntropies : public testing::Test {
 protected:
  static constexpr int64_t kLossRows = 4,
                           kVocabulary = 1000;  // no multiple of what the threads take
  const at::Tensor logits = random<T>({kLossRows, kVocabulary}, 1) * 8;
  const at::Tensor targets = at::tensor({0, 999, 17, 500}, at::kLong);
  const at::Tensor losses = unwritten<float>({kLossRows});
  const at::Tensor log_sums = unwritten<float>({kLossRows});

  [[nodiscard]] LogitRows<T> rows_of(const at::Tensor& of, const at::Tensor& targets_of) const {
    return {data<T>(of),         data<int64_t>(targets_of),
            data<float>(losses), data<float>(log_sums),
            kLossRows,           kVocabulary};
  }
  void forward(const at::Tensor& of, const at::Tensor& targets_of) const {
    const LogitRows<T> rows = rows_of(of, targets_of);
    play(kLossRows, kLossThreads, [rows] { cross_entropy<T, kLossThreads>(rows); },
         {losses, log_sums});
  }
};

using LossDtypes = testing::Types<float, c10::BFloat16, c10::Half>;
TYPED_TEST_SUITE(CrossEntropies, LossDtypes);

TYPED_TEST(CrossEntropies, AreThoseOfFp64) {
  using T = TypeParam;
  this->forward(this->logits, this->targets);
  const at::Tensor wide = this->logits.to(at::kDouble);
  const CrossEntropy expected = reference().cross_entropy(wide, this->targets);
  expect_near<float>(this->log_sums, expected.log_sums_R, "log sums");
  EXPECT_NEAR(this->losses.sum().template item<double>(), expected.loss_sum.item<double>(), 1e-3);

  const at::Tensor scale = at::tensor({0.25F});
  const at::Tensor gradient = this->logits.clone();
  emulator::play(this->kLossRows, kLossThreads, [&] {
    cross_entropy_backward<T, kLossThreads>(this->rows_of(gradient, this->targets),
                                            data<float>(scale));
  });
  at::Tensor of_fp64 = wide.clone();
  reference().cross_entropy_backward(of_fp64, this->targets, expected.log_sums_R,
                                     scale.to(at::kDouble).squeeze(0));
  expect_near<T>(gradient, of_fp64, "gradient");
}

// A thread's first pack, all of a thread's packs, a whole row; and logits that are +∞.
TYPED_TEST(CrossEntropies, OfMaskedLogitsAreThoseOfFp64) {
  const float infinity = std::numeric_limits<float>::infinity();
  const at::Tensor masked = this->logits.clone();
  masked.narrow(1, 0, 8).fill_(-infinity);
  masked[1].fill_(-infinity);
  masked[1][999] = 2;
  masked[2].fill_(-infinity);
  masked[3][20] = infinity;
  const at::Tensor among = at::tensor({20, 999, 20, 500}, at::kLong);
  this->forward(masked, among);
  const at::Tensor wide = masked.to(at::kDouble);
  const at::Tensor expected = reference().cross_entropy(wide, among).log_sums_R;
  for (int64_t row = 0; row < 4; ++row) {
    const auto found = this->log_sums[row].template item<double>();
    const auto log_sum = expected[row].template item<double>();
    if (std::isinf(log_sum)) {
      EXPECT_EQ(found, log_sum) << row;
    } else {
      EXPECT_NEAR(found, log_sum, 1e-4) << row;
    }
    const double target = wide[row][among[row].template item<int64_t>()].template item<double>();
    const double loss = log_sum - target;
    const auto found_loss = this->losses[row].template item<double>();
    EXPECT_TRUE(std::isnan(loss)   ? std::isnan(found_loss)
                : std::isinf(loss) ? found_loss == loss
                                   : std::abs(found_loss - loss) < 1e-3)
        << row << ": " << found_loss << ", not " << loss;
  }
}

TYPED_TEST(CrossEntropies, OfLargeLogitsAndOfTargetsOutside) {
  const at::Tensor large = at::full_like(this->logits, 5e4);
  large.narrow(1, 3, 1).fill_(-6e4);
  this->forward(large, at::tensor({0, 3, -1, 1000}, at::kLong));
  const at::Tensor found = this->losses;
  EXPECT_NEAR(found[0].template item<double>(), std::log(999.0), 1e-2);
  EXPECT_NEAR(found[1].template item<double>() / 1.1e5, 1, 1e-2);
  EXPECT_TRUE(std::isnan(found[2].template item<double>()));
  EXPECT_TRUE(std::isnan(found[3].template item<double>()));
  const at::Tensor broken = this->logits.clone();
  broken[2][77] = NAN;
  this->forward(broken, this->targets);
  EXPECT_TRUE(std::isnan(this->losses[2].template item<double>()));
  EXPECT_FALSE(std::isnan(this->losses[1].template item<double>()));
}

}  // namespace
}  // namespace sherd::ops::cuda
