// What `sherd bench --calibrate` measures, with its smallest models.

#include "llm/bench/calibrate.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "llm/plan/step_time.h"
#include "tests/llm/plan/small_runs.h"

namespace llm::bench {
namespace {

TEST(Calibrate, TimesEveryOperatorOfAStepAndWhatIsBesideThem) {
  std::vector<Reference> small = {references().at(0), references().at(3)};
  for (Reference& model : small) {
    model.layers = 1;
  }
  std::vector<std::string> said;
  const plan::Rates rates = calibrate(sherd::World::alone(), small,
                                      [&](const std::string& line) { said.push_back(line); });
  EXPECT_EQ(said.size(), 4);
  for (const std::string bits : {" float32", " 16 bits"}) {
    for (const std::string kind :
         {"linear", "linear_backward", "attention", "attention_backward", "rms_norm", "layer_norm",
          "swiglu_linear", "bias_gelu", "rotary", "embedding", "embedding_backward",
          "linear_cross_entropy", "linear_cross_entropy_backward", plan::step_kind::kOptimizer,
          plan::step_kind::kClip}) {
      EXPECT_GT(rates.seconds({kind + bits, 1e6}), 0) << kind << bits;
    }
  }
  const plan::PlannedRun run = plan::planned_run("llama", 1, sherd::Strategy::FullShard);
  EXPECT_GT(plan::plan_step_time(run, rates, {}).step_seconds, 1e-4);
}

}  // namespace
}  // namespace llm::bench
