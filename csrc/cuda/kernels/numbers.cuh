// Functions of one number that kernels share.
#pragma once

#include "../../common/maps.h"
#include "device.cuh"

namespace fwp::gpu {

FWP_BOTH int round_up(int x, int to) { return (x + to - 1) / to * to; }

// 2^e with x in [2^e, 2^(e+1)); 1 for 0.
FWP_DEVICE float power_below(float x) {
  if (!(x > 0)) return 1;
  uint32_t exponent = bits_of(x) >> 23;
  exponent = exponent < 1 ? 1 : exponent > 253 ? 253 : exponent;
  return float_of(exponent << 23);
}
FWP_DEVICE float one_over_power(float power) { return float_of(0x7f000000u - bits_of(power)); }  // of power_below's results
FWP_DEVICE float reciprocal(float x) { return x == 0 ? 0.f : quotient(1, x); }  // of a denominator: 0 / 0 counts as 0

}  // namespace fwp::gpu
