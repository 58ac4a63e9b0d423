#include "../gradient_walk.cuh"
#include "../preparation.cuh"
FWP_INSTANCE_OF_WALK_BYTES(Single)
FWP_INSTANCE_OF_WALK(Single, sum, state)
FWP_INSTANCE_OF_PREPARATION(Single, sum, state)
