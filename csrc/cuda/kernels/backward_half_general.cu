#include "backward.cuh"

namespace fwp::gpu {

const char* backward_half_general(const Call& call, void* stream) { return launch_backward<Half, true>(call, stream); }

}  // namespace fwp::gpu
