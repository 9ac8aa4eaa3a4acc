#pragma once
// AdamW::step(found_inf) in each way in which parameters and moments are kept.

#include <algorithm>
#include <string>
#include <vector>

#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include "sherd/fully_shard.h"
#include "sherd/optim.h"
#include "tests/support/expect_error.h"
#include "tests/support/small_net.h"

namespace sherd::test {

/// A model and its optimizer, which train on one example.
class OneModel {
 public:
  OneModel(const World& world, Master master, c10::ScalarType moments)
      : model_(fully_shard(make_net(), Mesh::shard(world), options_of(master))),
        optimizer_(model_, {.lr = 1e-2}, {}, {.moments_dtype = moments}) {}

  void backward() {
    const Example example = make_example(model_.world().rank());
    const c10::Device device = model_.world().device();
    sum_of_errors(model_(example.x.to(device)), example.y.to(device)).backward();
    static_cast<void>(clip_grad_norm(model_, 0.5));
  }
  void step(float found_inf) {
    backward();
    optimizer_.step(at::full({}, found_inf).to(model_.world().device()));
    optimizer_.zero_grad();
  }
  void step() {
    backward();
    optimizer_.step();
    optimizer_.zero_grad();
  }
  [[nodiscard]] std::vector<at::Tensor> state() const {
    std::vector<at::Tensor> state;
    for (const ParameterShard& shard : model_.parameter_shards()) {
      state.push_back(shard.value.cpu().clone());
    }
    for (const MomentShard& moment : optimizer_.moments()) {
      state.push_back(moment.exp_avg.cpu().clone());
      state.push_back(moment.exp_avg_sq.cpu().clone());
    }
    return state;
  }
  [[nodiscard]] AdamW& optimizer() { return optimizer_; }

 private:
  static ShardOptions options_of(Master master) {
    ShardOptions options;
    options.precision.param_dtype = c10::kBFloat16;
    options.precision.master = master;
    return options;
  }
  Sharded<Net> model_;
  AdamW optimizer_;
};

inline bool have_equal_bits(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const at::Tensor& x, const at::Tensor& y) { return at::equal(x, y); });
}

/// Collective.
inline void expect_left_out_where_not_finite(const World& world) {
  for (const Master master : {Master::Float32, Master::Split, Master::BFloat16}) {
    for (const c10::ScalarType moments : {c10::kFloat, c10::kBFloat16}) {
      SCOPED_TRACE(std::to_string(static_cast<int>(master)) + ", moments in " +
                   c10::toString(moments));
      OneModel plain(world, master, moments);
      OneModel asked(world, master, moments);
      plain.step();
      asked.step(0);
      const auto after_one = asked.state();
      EXPECT_TRUE(have_equal_bits(plain.state(), after_one));
      asked.step(1);
      EXPECT_TRUE(have_equal_bits(after_one, asked.state()));
      EXPECT_EQ(asked.optimizer().steps_done(), 1);
      EXPECT_EQ(asked.optimizer().steps_done("head.weight"), 1);
      asked.step(0);
      plain.step();  // bias corrections are those of a second step
      EXPECT_TRUE(have_equal_bits(plain.state(), asked.state()));
      asked.backward();
      const at::Tensor two = at::full({2}, 1.0F).to(world.device());
      expect_error([&] { asked.optimizer().step(two); }, ExitCode::Usage,
                   {"[AdamW::step] found_inf is one value on ", ", got 2 on "});
    }
  }
}

}  // namespace sherd::test
