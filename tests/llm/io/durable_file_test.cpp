#include "llm/io/durable_file.h"

#include "tests/llm/io/model_folders.h"

namespace llm::io {
namespace {

TEST(DurableFile, ReplacesTheOldFileAndLeavesNothingElse) {
  const TemporaryFolder folder;
  write_durable_file(folder / "a", "old");
  write_durable_file(folder / "a", "new");
  EXPECT_EQ(read_all(folder / "a"), "new");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1);
}

TEST(DurableFile, WhatCannotBeWrittenIsToldAndLeavesNothing) {
  const TemporaryFolder folder;
  expect_error([&] { write_durable_file(folder / "none/a", "x"); }, sherd::ExitCode::CannotWrite,
               "cannot be written: No such file or directory");
  std::filesystem::create_directory(folder / "a");
  expect_error([&] { write_durable_file(folder / "a", "x"); }, sherd::ExitCode::CannotWrite,
               "a: cannot be written: Is a directory");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1);
}

}  // namespace
}  // namespace llm::io
