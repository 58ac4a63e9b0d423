#include "forward.cuh"

namespace fwp::gpu {

int bytes_single(const Call& call, bool backward) { return bytes_of<Single>(call, backward); }
const char* forward_single(const Call& call, void* stream) { return launch_forward<Single, false>(call, stream); }

}  // namespace fwp::gpu
