// Opening a file takes less memory than its size + 64 MiB, whatever its header says. A program of
// its own: it counts all memory that operator new gives.

#include <atomic>
#include <cstdlib>
#include <new>

#include <gtest/gtest.h>
#include <malloc.h>

#include "sherd/safetensors.h"
#include "tests/safetensors/safetensors_files.h"

namespace {

std::atomic<size_t> live_bytes{0};
std::atomic<size_t> peak_bytes{0};

}  // namespace

void* operator new(size_t bytes) {
  void* memory = std::malloc(bytes);
  if (memory == nullptr) {
    throw std::bad_alloc();
  }
  const size_t live = live_bytes += malloc_usable_size(memory);
  for (size_t peak = peak_bytes; live > peak && !peak_bytes.compare_exchange_weak(peak, live);) {
  }
  return memory;
}

void operator delete(void* memory) noexcept {
  live_bytes -= malloc_usable_size(memory);
  std::free(memory);
}

void operator delete(void* memory, size_t) noexcept {
  operator delete(memory);
}

namespace sherd {
namespace {

constexpr size_t kAllowanceBytes = size_t{64} << 20;

// The most bytes held at once while the file is opened, besides those held before.
size_t opening_bytes(const std::string& path) {
  const size_t before = live_bytes;
  peak_bytes = before;
  try {
    const SafetensorsFile file(path);
  } catch (const Error&) {
    // refused files count as well
  }
  return peak_bytes - before;
}

void expect_within_allowance(const std::string& header) {
  const test::TemporaryFolder folder;
  test::write_file(folder / "x", test::safetensors_bytes(header, 0));
  const size_t file_bytes = header.size() + 8;
  const size_t bytes = opening_bytes(folder / "x");
  EXPECT_LT(bytes, file_bytes + kAllowanceBytes) << "a file of " << file_bytes << " bytes";
  std::cout << "file " << file_bytes << " bytes, held " << bytes << " bytes\n";
}

std::string many_tensors(int count, const std::string& shape, size_t name_bytes) {
  std::string header = "{";
  for (int i = 0; i < count; ++i) {
    std::string name = std::to_string(i);
    name.resize(std::max(name.size(), name_bytes), '_');
    header += (i == 0 ? "\"" : ",\"") + name + R"(":{"dtype":"U8","shape":)" + shape +
              R"(,"data_offsets":[0,0]})";
  }
  return header + "}";
}

TEST(SafetensorsMemory, StaysWithinTheFilesSizeAnd64Mebibytes) {
  constexpr int kMost = 1 << 17;
  expect_within_allowance(many_tensors(kMost, "[0]", 0));
  expect_within_allowance(many_tensors(kMost, "[0,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]", 0));
  expect_within_allowance(many_tensors(kMost, "[0,1,1,1,1,1,1,1,1]", 16));
  expect_within_allowance(many_tensors(kMost / 2 + 1, "[0,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]", 16));
  std::string metadata;
  for (int i = 0; i < 1 << 14; ++i) {
    metadata += (i == 0 ? "\"" : ",\"") + std::to_string(i) + "\":\"\"";
  }
  metadata = R"({"__metadata__":{)" + metadata + "}," +
             many_tensors(kMost, "[0,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]", 16).substr(1);
  expect_within_allowance(metadata);
}

TEST(SafetensorsMemory, LongStringsAndWhiteSpaceAreNotKept) {
  expect_within_allowance("{\"" + std::string(90'000'000, 'x') + "\":1}");
  std::string late_header(90'000'000, ' ');
  late_header.append("{}");
  expect_within_allowance(late_header);
  expect_within_allowance(std::string(90'000'000, '['));
  expect_within_allowance(R"({"__metadata__":{"a":")" + std::string(2'000'000, 'x') + R"(","b":")" +
                          std::string(2'000'000, 'x') + "\"}}");
}

}  // namespace
}  // namespace sherd
