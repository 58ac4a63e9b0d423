#include "backward.cuh"

namespace fwp::gpu {

int backward_bytes_single(const Call& call) { return bytes<Single>(call, true); }
const char* backward_single(const Call& call, void* stream) { return launch_backward<Single>(call, stream); }

}  // namespace fwp::gpu
