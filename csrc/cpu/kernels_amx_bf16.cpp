// x86-64 with AVX-512 and AMX, for bfloat16. Nothing here may run before capability.cpp has asked the processor, and the
// system for its permission to use tiles.
#include "capability.h"

#if FWP_HAS_AMX_BF16
#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // g++ 12's own header: __Y = __Y
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <immintrin.h>

#define FWP_NAMESPACE capability_amx_bf16
#define FWP_TARGET "amx-tile,amx-bf16,avx512bf16,avx512f,avx512dq,avx512bw,avx512vl,avx2,fma"
#define FWP_VECTOR_BYTES 64
#define FWP_TILE_ROWS 8
#define FWP_BF16 1
#include "instruction_set.h"
#endif
