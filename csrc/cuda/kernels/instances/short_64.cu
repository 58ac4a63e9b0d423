#include "../short_launch.cuh"

namespace fwp::gpu {
template struct ShortLaunch<64>;
}  // namespace fwp::gpu
