#include "backward.cuh"

namespace fwp::gpu {

int backward_bytes_half(const Call& call) { return bytes<Half>(call, true); }
const char* backward_half(const Call& call, void* stream) { return launch_backward<Half>(call, stream); }

}  // namespace fwp::gpu
