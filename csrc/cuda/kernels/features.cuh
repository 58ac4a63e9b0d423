// Functions of one number, and sums and softmax of a row by the lanes of a warp, from which features are computed.
// Definitions: fwp_fairseq/feature_maps.
#pragma once

#include "call.h"
#include "device.cuh"

#define FWP_FUNCTION FWP_DEVICE
#include "../../common/elementwise.h"

namespace fwp::gpu {

// The inverse of a denominator: 0 for 0, so that 0 / 0 is 0; NaN for infinity, because the numerator overflows too, and
// because decoding, which scales keys before phi, would get zeros.
FWP_DEVICE float inverse_of(float x) { return x == 0 ? 0.f : x - x != 0 ? x - x : 1 / x; }

struct OfFloats {  // the device of common/elementwise.h
  using Number = float;
  static FWP_DEVICE float number(float x) { return x; }
  static FWP_DEVICE float where(bool condition, float a, float b) { return condition ? a : b; }
  static FWP_DEVICE float exponential(float x) { return gpu::exponential(x); }
};

struct Lanes {
  const int lane;

  FWP_DEVICE Lanes() : lane(thread_index() % 32) {}
  template <class N, class F> FWP_DEVICE void each(N count, F f) const {
    FWP_ROLLED (N i = lane; i < count; i += 32) f(i);
  }
  template <class N, class F> FWP_DEVICE float sum(N count, F number) const {
    float total = 0;
    each(count, [&](N i) { total += number(i); });
    FWP_UNROLL (int mask = 16; mask > 0; mask /= 2) total += shuffle_xor(total, mask);
    return total;
  }
  // The largest number(i), ignoring NaN.
  template <class N, class F> FWP_DEVICE float largest(N count, F number) const {
    float most = number(0);
    each(count, [&](N i) { most = larger(most, number(i)); });
    FWP_UNROLL (int mask = 16; mask > 0; mask /= 2) most = larger(most, shuffle_xor(most, mask));
    return most;
  }
  // put(i, number i of softmax(y), that of softmax(-y))
  template <class N, class Put> FWP_DEVICE void softmax_pair(N n, const float* y, Put put) const {
    const float most = largest(n, [&](N i) { return y[i]; }), least = -largest(n, [&](N i) { return -y[i]; });
    const float up = 1 / sum(n, [&](N i) { return exponential(y[i] - most); });
    const float down = 1 / sum(n, [&](N i) { return exponential(least - y[i]); });
    each(n, [&](N i) { put(i, exponential(y[i] - most) * up, exponential(least - y[i]) * down); });
  }
  // put(i, gradient of y_i): f+ (df+ - f+.df+) - f- (df- - f-.df-)
  template <class N, class Put>
  FWP_DEVICE void softmax_pair_back(N n, const float* f, const float* df, Put put) const {
    const float up = sum(n, [&](N i) { return f[i] * df[i]; });
    const float down = sum(n, [&](N i) { return f[n + i] * df[n + i]; });
    each(n, [&](N i) { put(i, f[i] * (df[i] - up) - f[n + i] * (df[n + i] - down)); });
  }
};

}  // namespace fwp::gpu
