#include "../short_launch.cuh"

namespace fwp::gpu {
template struct ShortLaunch<32>;
}  // namespace fwp::gpu
