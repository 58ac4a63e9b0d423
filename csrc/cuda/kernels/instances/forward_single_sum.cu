#include "../forward.cuh"
FWP_INSTANCE_OF_BYTES(Single)
FWP_INSTANCE_OF_FORWARD(Single, sum, plain)
