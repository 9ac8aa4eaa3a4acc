#pragma once
// Expectations on sherd::Error: its exit code and parts of its message.

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sherd/error.h"

namespace sherd::test {

/// Runs `body`, which must throw sherd::Error with this code and every one of these parts in its
/// message.
template <typename Body>
void expect_error(Body body, ExitCode code, const std::vector<std::string>& parts) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_EQ(static_cast<int>(error.code()), static_cast<int>(code)) << error.what();
    for (const std::string& part : parts) {
      EXPECT_THAT(error.what(), ::testing::HasSubstr(part));
    }
    return;
  }
  ADD_FAILURE() << "no error; expected one with: " << (parts.empty() ? "" : parts.front());
}

}  // namespace sherd::test
