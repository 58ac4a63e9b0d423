#include "backward.cuh"

namespace fwp::gpu {

const char* backward_half(const Call& call, void* stream) { return launch_backward<Half, false>(call, stream); }

}  // namespace fwp::gpu
