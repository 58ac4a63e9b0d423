// DPFP (Schlag et al. 2021, Eq. 37 and Listing 1): base rows r = relu([x, -x]), phi_{j,i} = r_i r_{i-j} for the offsets
// j = 1 .. nu, indices modulo 2 d_key.
#pragma once

#include "elementwise.cuh"

namespace fwp::gpu {

template <> struct Phi<Map::dpfp> {
  static constexpr bool rolls = true, projects = false, rises = false, zero = true;

  static FWP_DEVICE float factor(float unit, int) { return unit * unit; }
  static FWP_DEVICE float of_largest(float x) { return x; }

  template <class P, class S, class F> static FWP_DEVICE void base(Float2 y, S scaled, F put, int d_key) {
    const typename P::Pair z = scaled(y);
    put(P::relu(z), 0);
    put(P::relu(P::negative(z)), d_key);
  }

  template <class C> static FWP_DEVICE int decode_count(const C& c) { return 2 * c.d_key; }
  template <class C> static FWP_DEVICE void decode(const C& c, const float* x, float* phi, int i) {
    const auto r = [&](int i) {
      const float y = i < c.d_key ? x[i] : -x[i - c.d_key];
      return y < 0 ? 0.f : y;
    };
    const int width = 2 * c.d_key;
    const float own = r(i);
    FWP_ROLLED for (int j = 1; j <= c.nu; ++j) phi[(j - 1) * width + i] = own * r(i < j ? i - j + width : i - j);
  }
};

}  // namespace fwp::gpu
