// The values of all halves, which are faster to look up than to compute.
#include "device.h"

namespace fwp::gpu::shim {
namespace {

const float* all_halves() {
  float* values = new float[65536];
  for (int i = 0; i < 65536; ++i) {
    const int exponent = i >> 10 & 31, mantissa = i & 1023;
    float x = exponent == 0    ? std::ldexp(float(mantissa), -24)
              : exponent == 31 ? (mantissa ? NAN : INFINITY)
                               : std::ldexp(float(mantissa + 1024), exponent - 25);
    values[i] = i & 0x8000 ? -x : x;
  }
  return values;
}

}  // namespace

const float* const half_values = all_halves();

}  // namespace fwp::gpu::shim
