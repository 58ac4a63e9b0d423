// x86-64 with AVX-512. Nothing here may run before capability.cpp has checked that the processor has it.
#if defined(__x86_64__)
#define FWP_NAMESPACE capability_avx512
#define FWP_TARGET "avx512f,avx512dq,avx512bw,avx512vl,avx2,fma"
#define FWP_VECTOR_BYTES 64
#define FWP_TILE_ROWS 8
#include "kernels.h"
#endif
