#include "../decode.cuh"
#include "../fold.cuh"
FWP_INSTANCES_OF_DECODE(Single)
