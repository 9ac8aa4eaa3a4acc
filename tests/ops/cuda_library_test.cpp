// How the back end for GPUs comes from a library of its own, shown with one that has no GPU's.

#include "ops/cuda_library.h"

#include <string>
#include <vector>

#include <ATen/ops/ones.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ops/plain/plain_backend.h"
#include "ops/with_backend.h"

namespace sherd::ops {
namespace {

class Warnings final : public c10::WarningHandler {
 public:
  void process(const c10::Warning& warning) override { texts.push_back(warning.msg()); }
  std::vector<std::string> texts;
};

TEST(CudaLibrary, TurnsThePlainBackEndIntoItsOwn) {
  const Backend plain = plain::plain_backend();
  const Backend found =
      backend_of_library(SHERD_TEST_BINARY_DIR "/tests/libsherd_test_backend.so", plain);
  EXPECT_STREQ(found.name, "of a library");
  EXPECT_EQ(found.mm, plain.mm);
}

// Of what is no library, and of a library that has no back end.
TEST(CudaLibrary, LeavesThePlainOneAndSaysWhyItWasNotLoaded) {
  const Backend plain = plain::plain_backend();
  for (const char* library : {"libsherd_that_is_not_there.so", "libc.so.6"}) {
    Warnings warnings;
    const c10::WarningUtils::WarningHandlerGuard guard(&warnings);
    EXPECT_STREQ(backend_of_library(library, plain).name, plain.name);
    ASSERT_EQ(warnings.texts.size(), 1U);
    EXPECT_THAT(warnings.texts[0], testing::AllOf(testing::HasSubstr("operators on GPUs"),
                                                  testing::HasSubstr(library)));
  }
}

TEST(WithBackend, IsWhatOperatorsOnItsThreadComputeWith) {
  const at::Tensor tensor = at::ones({1});
  const Backend other = plain::plain_backend();
  const Backend* const before = &backend_of(tensor);
  {
    const WithBackend outer(other);
    EXPECT_EQ(&backend_of(tensor), &other);
    const WithBackend inner(*before);
    EXPECT_EQ(&backend_of(tensor), before);
  }
  EXPECT_EQ(&backend_of(tensor), before);
}

}  // namespace
}  // namespace sherd::ops
