#include "../gradient_walk.cuh"
#include "../preparation.cuh"
FWP_INSTANCE_OF_WALK(Single, gated_delta, general)
FWP_INSTANCE_OF_PREPARATION(Single, gated_delta, general)
