#include "../gradient_walk.cuh"
#include "../preparation.cuh"
FWP_INSTANCE_OF_WALK(Single, sum, general)
FWP_INSTANCE_OF_PREPARATION(Single, sum, general)
