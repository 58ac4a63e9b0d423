#include "../forward.cuh"
FWP_INSTANCE_OF_FORWARD(Single, delta, general)
