#include "backward.cuh"

namespace fwp::gpu {

const char* backward_single_general(const Call& call, void* stream) { return launch_backward<Single, true>(call, stream); }

}  // namespace fwp::gpu
