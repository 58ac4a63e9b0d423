// x86-64 with AVX2. Nothing here may run before capability.cpp has checked that the processor has it.
#if defined(__x86_64__)
#define FWP_NAMESPACE capability_avx2
#define FWP_TARGET "avx2,fma"
#define FWP_VECTOR_BYTES 32
#define FWP_TILE_ROWS 4
#include "kernels.h"
#endif
