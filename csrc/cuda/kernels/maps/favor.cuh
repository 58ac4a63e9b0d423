// FAVOR+ (Choromanski et al. 2021): with x' = input_scale x and m rows R of the projection,
// phi = exp(-|x'|^2 / 2) / sqrt(2 m) [exp(R x'), exp(-R x')], exponents clipped. A token's base rows are its
// features over their largest, whose exponent is its `unit`; the constant is left out.
#pragma once

#include "elementwise.cuh"

namespace fwp::gpu {

template <> struct Phi<Map::favor> {
  static constexpr bool rolls = false, projects = true;

  static FWP_DEVICE float factor(float unit, int d_dot) { return exponential(unit) / sqrtf(float(d_dot)); }

  template <class C> static FWP_DEVICE int decode_count(const C& c) { return c.m; }
  template <class C> static FWP_DEVICE void decode(const C& c, const float* x, float* phi, int i) {
    float p = 0, norm = 0;
#pragma unroll 8
    for (int d = 0; d < c.d_key; ++d) {
      const float y = c.input_scale * x[d];
      p += y * c.projection[int64_t(d) * c.m + i];
      norm += y * y;
    }
    const auto feature = [&](float exponent) {
      constexpr float highest = largest_exponent;
      return exponential(exponent > highest ? highest : exponent) / sqrtf(float(c.d_dot));
    };
    phi[i] = feature(p - 0.5f * norm);
    phi[c.m + i] = feature(-p - 0.5f * norm);
  }
};

}  // namespace fwp::gpu
