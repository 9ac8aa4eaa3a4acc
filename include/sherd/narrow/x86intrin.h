#pragma GCC system_header
#if defined(SHERD_NARROW_TORCH) && __has_include(<x86gprintrin.h>)
#include <x86gprintrin.h>  // __rdtsc
// Sources with vector instructions include immintrin.h themselves.
#else
#include_next <x86intrin.h>
#endif
