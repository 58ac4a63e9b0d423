// The features of one row in a decoding step, for every map. A warp computes them; x and phi are in memory that its lanes
// share. Definitions: fwp_fairseq/feature_maps.
#pragma once

#include "decode_call.h"
#include "features.cuh"

namespace fwp::gpu {

// DPFP: r = relu([x, -x]); feature (j - 1) 2 d_key + b is r_b r_{b-j}, j from 1 to nu, indices of r modulo 2 d_key.
template <class X> FWP_DEVICE float relu_of(const X& x, int d_key, int b) {
  const float y = b < d_key ? x(b) : -x(b - d_key);
  return y < 0 ? 0.f : y;
}
template <class X> FWP_DEVICE float dpfp_feature(const X& x, int d_key, int i) {
  const int width = 2 * d_key, b = i % width, j = 1 + i / width;
  return relu_of(x, d_key, b) * relu_of(x, d_key, b < j ? b - j + width : b - j);
}
// Calls f(i, feature i) once for each feature, computed from r(b). Avoids divisions, which are slow.
template <class R, class F> FWP_DEVICE void each_dpfp_feature(const R& r, int d_key, int nu, F f) {
  const int width = 2 * d_key;
  Lanes().each(width, [&](int b) {
    const float own = r(b);
    int before = b;
    FWP_ROLLED (int i = b; i < nu * width; i += width) {
      before = before == 0 ? width - 1 : before - 1;
      f(i, own * r(before));
    }
  });
}

struct Features : Lanes {
  const DecodeCall& c;
  float* const x;  // [2 d_key]: under DPFP r, else x
  float* const phi;

  FWP_DEVICE Features(const DecodeCall& call, float* x, float* phi) : c(call), x(x), phi(phi) {}

  FWP_DEVICE void take(int d, float input) const {
    x[d] = input;
    if (c.map != Map::dpfp) return;
    x[d] = input < 0 ? 0.f : input;
    x[c.d_key + d] = input > 0 ? 0.f : -input;
  }
  FWP_DEVICE float input(int d) const { return c.map == Map::dpfp ? x[d] - x[c.d_key + d] : x[d]; }

  FWP_DEVICE float favor_feature(float exponent) const {
    const float top = largest_exponent;
    return exponential(exponent > top ? top : exponent) / square_root(float(c.d_dot));
  }
  template <Map M> FWP_DEVICE float elementwise() const {
    float total = 0;
    each(c.d_dot, [&](int i) { total += phi[i] = Function<M>::template value<OfFloats>(x[i]); });
    return total;
  }
  // Computes phi of x, before any normalisation. Returns the sum of this lane's features.
  FWP_DEVICE float make() const {
    float total = 0;
    switch (c.map) {
#define FWP_CASE(name)                                                                                                 \
  case Map::name:                                                                                                      \
    total = elementwise<Map::name>();                                                                                  \
    break;
      FWP_ELEMENTWISE(FWP_CASE)
#undef FWP_CASE
      case Map::dpfp:
        each_dpfp_feature([&](int b) { return x[b]; }, c.d_key, c.nu, [&](int i, float y) { total += phi[i] = y; });
        break;
      case Map::favor: {
        const float norm = sum(c.d_key, [&](int d) { return c.input_scale * x[d] * (c.input_scale * x[d]); }) / 2;
        each(c.m, [&](int i) {
          float p = 0;
          for (int d = 0; d < c.d_key; ++d) p += c.input_scale * x[d] * c.projection[int64_t(d) * c.m + i];
          total += phi[i] = favor_feature(p - norm);
          total += phi[c.m + i] = favor_feature(-p - norm);
        });
        break;
      }
      case Map::softmax_pair:
        softmax_pair(c.d_key, x, [&](int d, float up, float down) {
          total += phi[d] = up;
          total += phi[c.d_key + d] = down;
        });
        break;
    }
    sync_warp();
    return total;
  }
  // The factor of phi: 0 for padding; if the call normalises features, the inverse of their sum; else 1.
  FWP_DEVICE float norm(bool pad, float made) const {
    if (pad) return 0;
    if (!c.normalize_features) return 1;
    FWP_UNROLL (int mask = 16; mask > 0; mask /= 2) made += shuffle_xor(made, mask);
    return inverse_of(made + c.eps);
  }
};

}  // namespace fwp::gpu
