#include "../gradient_walk.cuh"
#include "../preparation.cuh"
FWP_INSTANCE_OF_WALK(Half, gated_delta, general)
FWP_INSTANCE_OF_PREPARATION(Half, gated_delta, general)
