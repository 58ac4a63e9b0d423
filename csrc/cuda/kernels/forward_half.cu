#include "forward.cuh"

namespace fwp::gpu {

int forward_bytes_half(const Call& call) { return bytes<Half>(call, false); }
const char* forward_half(const Call& call, void* stream) { return launch_forward<Half>(call, stream); }

}  // namespace fwp::gpu
