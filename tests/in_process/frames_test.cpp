// How many functions lie between the program's entry and a step's forward.

#include <algorithm>
#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <ATen/record_function.h>
#include <dlfcn.h>
#include <unwind.h>

#include "app/verb_of.h"
#include "tests/in_process/captured.h"
#include "tests/in_process/run_program.h"

namespace sherd::test {
namespace {

using Frames = std::vector<void*>;  // the innermost first

_Unwind_Reason_Code keep(_Unwind_Context* context, void* frames) {
  static_cast<Frames*>(frames)->push_back(
      reinterpret_cast<void*>(_Unwind_GetIP(context)));  // NOLINT: an address
  return _URC_NO_REASON;
}

[[gnu::noinline]] Frames frames_here() {
  Frames frames;
  _Unwind_Backtrace(keep, &frames);
  return frames;
}

const void* object_of(const void* address) {
  Dl_info info{};
  return dladdr(address, &info) != 0 ? info.dli_fbase : nullptr;
}

// The first of each name.
std::map<std::string, Frames>& frames_of_ranges() {
  static std::map<std::string, Frames> frames;
  return frames;
}

// Called by LibTorch as a range begins.
std::unique_ptr<at::ObserverContext> on_range(const at::RecordFunction& range) {
  frames_of_ranges().try_emplace(range.name(), frames_here());
  return nullptr;
}

// Frames of the program that lie below LibTorch's, which called on_range().
std::size_t below_observer(const std::string& range) {
  const Frames& frames = frames_of_ranges().at(range);
  const void* const mine = object_of(frames.front());
  const auto is_mine = [&](const void* frame) { return object_of(frame) == mine; };
  const auto libtorch = std::find_if_not(frames.begin(), frames.end(), is_mine);
  return static_cast<std::size_t>(frames.end() - std::find_if(libtorch, frames.end(), is_mine));
}

// This test stands for main(), with std::function's call operator, which is no frame where code is
// optimised. A range of the test shows how many frames RECORD_USER_SCOPE has of its own.
TEST(Frames, FromMainToForwardAreAtMostEight) {
  const TempFolder folder;
  Arguments words = Arguments{"sherd"} + train(folder.path() / "run", "1");
  std::size_t of_main = 0;
  const Ended ended = captured({}, [&] {
    std::vector<char*> argv;
    for (std::string& word : words) {
      argv.push_back(word.data());
    }
    const auto handle = at::addThreadLocalCallback(
        at::RecordFunctionCallback(on_range).scopes({at::RecordScope::USER_SCOPE}));
    of_main = frames_here().size() - 1;
    { RECORD_USER_SCOPE("main"); }
    const int code = app::verb_of(static_cast<int>(argv.size()), argv.data())();
    at::removeCallback(handle);
    return code;
  });
  ASSERT_EQ(ended.code, 0) << ended.err;
  ASSERT_TRUE(frames_of_ranges().contains("forward"));
  const std::size_t of_range = below_observer("main") - of_main;
  const std::size_t call_operator = 1;
  const std::size_t frames = below_observer("forward") - of_range - of_main + 1 - call_operator;
  RecordProperty("frames", static_cast<int>(frames));
  EXPECT_LE(frames, 8);
  EXPECT_GE(frames, 5);
}

}  // namespace
}  // namespace sherd::test
