// A view of a parameter that is used while that is sharded ends the program with its unit's name,
// not with garbage. (The parameter itself: see wrong_use_test.cpp.)

#include <csignal>

#include <gtest/gtest.h>

#include "sherd/error.h"
#include "sherd/fully_shard.h"
#include "tests/support/ranks.h"
#include "tests/support/small_net.h"

namespace sherd::test {
namespace {

void read_parameter_of_resharded_unit() {
  explain_access_to_sharded_parameters();
  run_ranks(2, [](World world) {
    auto model = fully_shard(make_net(), Mesh::shard(world));
    // A view made while the unit was there, as autograd keeps them.
    at::Tensor kept;
    model.module()->blocks[1]->run([&](BlockImpl& block) { kept = block.down->bias.detach(); });
    world.barrier();
    // LibTorch's own ways to an address throw; code of others may look past them.
    c10::StorageImpl& storage = *kept.storage().unsafeGetStorageImpl();
    const auto* address = static_cast<const float*>(storage._mutable_data_ptr_no_checks().get());
    volatile float value = address[kept.storage_offset() + 3];
    static_cast<void>(value);
  });
}

void crash_in_another_way() {
  explain_access_to_sharded_parameters();
  std::raise(SIGSEGV);
}

TEST(ForbiddenAccessDeathTest, NamesTheUnitOfAView) {
  EXPECT_EXIT(read_parameter_of_resharded_unit(),
              testing::ExitedWithCode(static_cast<int>(ExitCode::Usage)),
              "a view of a parameter of unit 'block1' was used while it was sharded");
}

TEST(ForbiddenAccessDeathTest, LeavesOtherFaultsAlone) {
  EXPECT_EXIT(crash_in_another_way(), testing::KilledBySignal(SIGSEGV), "");
}

}  // namespace
}  // namespace sherd::test
