#pragma once
#include <x86gprintrin.h>  // __rdtsc
// What vectorises includes immintrin.h itself.
