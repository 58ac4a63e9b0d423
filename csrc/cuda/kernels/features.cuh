// Feature maps. A warp computes one row; x and phi are in memory that its lanes share. Definitions:
// fwp_fairseq/feature_maps.
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

// The map of a call, which has the fields map, nu, m, d_key, d_dot and input_scale.
template <class C> struct Features : Lanes {
  const C& c;
  float* const x;  // [2 d_key]: under DPFP r, else x
  const float* const projection_transposed;
  float* const phi;

  FWP_DEVICE Features(const C& call, float* x, const float* projection_transposed, float* phi)
      : c(call), x(x), projection_transposed(projection_transposed), phi(phi) {}

  FWP_DEVICE void take(int d, float input) const {
    x[d] = input;
    if (c.map != Map::dpfp) return;
    x[d] = input < 0 ? 0.f : input;
    x[c.d_key + d] = input > 0 ? 0.f : -input;
  }
  FWP_DEVICE float input(int d) const { return c.map == Map::dpfp ? x[d] - x[c.d_key + d] : x[d]; }

  FWP_DEVICE float highest() const { return favor_feature(largest_exponent); }
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
          for (int d = 0; d < c.d_key; ++d) p += c.input_scale * x[d] * projection_transposed[int64_t(d) * c.m + i];
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

  // Calls put(d, gradient of x_d); g is the gradient of phi, which is overwritten.
  template <class Put> FWP_DEVICE void back(float* g, const float* projection, Put put) const {
    switch (c.map) {
#define FWP_CASE(name)                                                                                                 \
  case Map::name:                                                                                                      \
    return elementwise_back<Map::name>(g, put);
      FWP_ELEMENTWISE(FWP_CASE)
#undef FWP_CASE
      case Map::dpfp:  // rows.cuh
        return;
      case Map::favor:
        return favor_back(g, projection, put);
      case Map::softmax_pair:
        return softmax_pair_back(c.d_key, phi, g, put);
    }
  }

 private:
  template <Map M, class Put> FWP_DEVICE void elementwise_back(const float* g, Put put) const {
    each(c.d_dot, [&](int i) { put(i, Function<M>::template back<OfFloats>(g[i], phi[i])); });
  }
  template <class Put> FWP_DEVICE void favor_back(float* g, const float* projection, Put put) const {
    const float top = highest();
    each(c.d_dot, [&](int i) { g[i] = phi[i] < top ? g[i] * phi[i] : 0.f; });  // of exponents
    sync_warp();
    const float of_norm = sum(c.d_dot, [&](int i) { return g[i]; });
    each(c.d_key, [&](int d) {
      float dx = -c.input_scale * x[d] * of_norm;
      for (int i = 0; i < c.m; ++i) dx += (g[i] - g[c.m + i]) * projection[int64_t(i) * c.d_key + d];
      put(d, c.input_scale * dx);
    });
  }
};

}  // namespace fwp::gpu
