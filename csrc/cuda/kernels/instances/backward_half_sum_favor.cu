#include "../backward_kernel.cuh"
FWP_INSTANCE_OF_BACKWARD(Half, sum, favor)
