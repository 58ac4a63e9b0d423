#include "../forward.cuh"
FWP_INSTANCE_OF_FORWARD(Half, gated_delta, state)
