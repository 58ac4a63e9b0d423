#include "forward.cuh"

namespace fwp::gpu {

int bytes_half(const Call& call, bool backward) { return bytes_of<Half>(call, backward); }
const char* forward_half(const Call& call, void* stream) { return launch_forward<Half, false>(call, stream); }

}  // namespace fwp::gpu
