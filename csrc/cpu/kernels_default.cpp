// Any processor: the instructions that the compiler uses by default (on x86-64, SSE2).
#define FWP_NAMESPACE capability_default
#define FWP_VECTOR_BYTES 16
#define FWP_TILE_ROWS 4
#include "kernels.h"
