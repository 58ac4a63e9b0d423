#include "forward.cuh"

namespace fwp::gpu {

const char* forward_single_general(const Call& call, void* stream) { return launch_forward<Single, true>(call, stream); }

}  // namespace fwp::gpu
