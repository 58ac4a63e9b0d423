#include "../short_launch.cuh"

namespace fwp::gpu {
template struct ShortLaunch<128>;
}  // namespace fwp::gpu
