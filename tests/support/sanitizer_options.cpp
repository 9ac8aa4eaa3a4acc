// Options of the sanitizers for every test program of a build with SHERD_SANITIZER, each with its
// reason. They hold without any variable of the environment, also in ranks that a test forks or
// starts. LibTorch is not instrumented: what it does is seen only where it calls malloc, free,
// memcpy and the like.

// The names are the sanitizers' own.
// NOLINTBEGIN(bugprone-reserved-identifier,readability-identifier-naming)

extern "C" const char* __asan_default_options();
extern "C" const char* __asan_default_options() {
  return
      // A pointer into a frame that has been left is an error too: ranks are threads that share
      // much.
      "detect_stack_use_after_return=1:"
      // Objects of other files that are not constructed yet: libsherd is to have no such globals.
      "check_initialization_order=1:strict_init_order=1:"
      // A report names what was allocated and freed where, ten frames deep: LibTorch's stacks are
      // long.
      "malloc_context_size=10";
}

extern "C" const char* __ubsan_default_options();
extern "C" const char* __ubsan_default_options() {
  // Undefined behaviour ends the test; by default it is only printed.
  return "halt_on_error=1:print_stacktrace=1";
}

extern "C" const char* __tsan_default_options();
extern "C" const char* __tsan_default_options() {
  // By default a process sleeps a second as it ends, if other threads run: longer than a rank has
  // between its own deadline and its launcher's.
  return "atexit_sleep_ms=0";
}

// No leak is suppressed: LibTorch leaves none that these tests reach.

// NOLINTEND(bugprone-reserved-identifier,readability-identifier-naming)
