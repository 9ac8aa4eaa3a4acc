// Rows of a hybrid mesh and the hosts on which their ranks are.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sherd/world.h"

namespace sherd::test {
namespace {

using testing::HasSubstr;

/// A rank somewhere among the hosts. Nothing is exchanged.
class Placed final : public Backend {
 public:
  Placed(int rank, int local_rank) : rank_(rank), local_rank_(local_rank) {}
  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int size() const override { return 4; }
  [[nodiscard]] int local_rank() const override { return local_rank_; }
  [[nodiscard]] int local_size() const override { return 2; }
  [[nodiscard]] std::unique_ptr<Communicator> make_communicator(const RankGroup&) override {
    return nullptr;
  }
  [[nodiscard]] Communicator& control() override { throw std::logic_error("nothing"); }

 private:
  int rank_;
  int local_rank_;
};

/// Warnings while it lives.
class WarningsOfMesh final : public c10::WarningHandler {
 public:
  void process(const c10::Warning& warning) override { said_ += warning.msg(); }
  [[nodiscard]] std::string of(int rank, int local_rank, std::optional<int> shard_size = {},
                               Strategy strategy = Strategy::HybridShard) {
    const c10::WarningUtils::WarningHandlerGuard guard(this);
    said_.clear();
    static_cast<void>(Mesh::of_strategy(World::over(std::make_shared<Placed>(rank, local_rank)),
                                        strategy, shard_size));
    return said_;
  }

 private:
  std::string said_;
};

TEST(MeshOfHosts, IsSilentWhereRowsAreHosts) {
  WarningsOfMesh warnings;
  EXPECT_EQ(warnings.of(0, 0) + warnings.of(1, 1) + warnings.of(2, 0) + warnings.of(3, 1), "");
}

TEST(MeshOfHosts, SaysThatARowGathersAcrossHosts) {
  WarningsOfMesh warnings;  // ranks 0 and 2 are on one host, 1 and 3 on the other
  EXPECT_THAT(warnings.of(1, 0), HasSubstr("rank 1 is the first of its host"));
  EXPECT_THAT(warnings.of(1, 0), HasSubstr("srun --distribution=block, mpirun --map-by slot"));
  EXPECT_EQ(warnings.of(0, 0) + warnings.of(2, 1) + warnings.of(3, 1), "");  // once a host
  EXPECT_EQ(warnings.of(1, 0, {}, Strategy::FullShard), "");
  EXPECT_EQ(warnings.of(1, 0, 1), "");  // a row of one gathers nothing
  EXPECT_EQ(warnings.of(1, 0, 4), "");  // asked for
}

}  // namespace
}  // namespace sherd::test
