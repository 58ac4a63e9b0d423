#include "../backward.cuh"
FWP_INSTANCE_OF_BACKWARD(Half, gated_delta, state)
