#include "../forward.cuh"
FWP_INSTANCE_OF_BYTES(Half)
FWP_INSTANCE_OF_FORWARD(Half, sum, plain)
