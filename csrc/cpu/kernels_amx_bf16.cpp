// x86-64 with amx-tile, amx-bf16, avx512bf16 and what kernels_avx512.cpp asks for. Nothing here may run before
// capability.cpp has asked the processor, and the system for its permission to use tiles.
#include "capability.h"

#if FWP_HAS_AMX_BF16
#include <cstddef>
#include <cstdint>
#include <utility>

#if !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // g++ 12's own header: __Y = __Y
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <immintrin.h>
#if !defined(__clang__)
#pragma GCC diagnostic pop
#endif

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("amx-tile,amx-bf16,avx512bf16,avx512f,avx512dq,avx512bw,avx512vl,avx2,fma"))), apply_to = function)
#else
#pragma GCC target("amx-tile,amx-bf16,avx512bf16,avx512f,avx512dq,avx512bw,avx512vl,avx2,fma")  // to the end of the file
#endif

#define FWP_NAMESPACE capability_amx_bf16
#define FWP_VECTOR_BYTES 64
#define FWP_TILE_ROWS 8
#define FWP_BF16 1
#include "instruction_set.h"

#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
