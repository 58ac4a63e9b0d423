#include "forward.cuh"

namespace fwp::gpu {

int forward_bytes_single(const Call& call) { return bytes<Single>(call, false); }
const char* forward_single(const Call& call, void* stream) { return launch_forward<Single>(call, stream); }

}  // namespace fwp::gpu
