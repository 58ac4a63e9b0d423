#include "../forward.cuh"
FWP_INSTANCE_OF_FORWARD(Single, gated_delta, state)
