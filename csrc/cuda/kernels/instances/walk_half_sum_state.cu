#include "../gradient_walk.cuh"
#include "../preparation.cuh"
FWP_INSTANCE_OF_WALK_BYTES(Half)
FWP_INSTANCE_OF_WALK(Half, sum, state)
FWP_INSTANCE_OF_PREPARATION(Half, sum, state)
