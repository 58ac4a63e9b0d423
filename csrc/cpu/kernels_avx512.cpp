// x86-64 with avx512f, avx512dq, avx512bw, avx512vl, avx2, fma. Nothing here may run before capability.cpp has asked the processor.
#if defined(__x86_64__)
#include <cstddef>
#include <cstdint>
#include <utility>

#include "decode_call.h"

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512dq,avx512bw,avx512vl,avx2,fma"))), apply_to = function)
#else
#pragma GCC target("avx512f,avx512dq,avx512bw,avx512vl,avx2,fma")  // to the end of the file: templates are compiled there
#endif

#define FWP_NAMESPACE capability_avx512
#define FWP_VECTOR_BYTES 64
#define FWP_TILE_ROWS 8
#include "instruction_set.h"

#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
