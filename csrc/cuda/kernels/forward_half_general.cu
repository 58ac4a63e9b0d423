#include "forward.cuh"

namespace fwp::gpu {

const char* forward_half_general(const Call& call, void* stream) { return launch_forward<Half, true>(call, stream); }

}  // namespace fwp::gpu
