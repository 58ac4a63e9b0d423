#include "backward.cuh"

namespace fwp::gpu {

const char* backward_single(const Call& call, void* stream) { return launch_backward<Single, false>(call, stream); }

}  // namespace fwp::gpu
