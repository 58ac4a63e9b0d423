#include "../backward_kernel.cuh"
FWP_INSTANCE_OF_BACKWARD(Single, delta, general)
