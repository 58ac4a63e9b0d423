#include "../short_launch.cuh"

namespace fwp::gpu {

int bytes_of_short(const Call& c) {
  const int rows = short_rows(c);
  return rows == 32   ? ShortLaunch<32>::bytes_of(c)
         : rows == 64 ? ShortLaunch<64>::bytes_of(c)
                      : ShortLaunch<128>::bytes_of(c);
}
const char* run_short(const Call& c, void* stream) {
  const int rows = short_rows(c);
  return rows == 32   ? ShortLaunch<32>::run(c, stream)
         : rows == 64 ? ShortLaunch<64>::run(c, stream)
                      : ShortLaunch<128>::run(c, stream);
}

}  // namespace fwp::gpu
