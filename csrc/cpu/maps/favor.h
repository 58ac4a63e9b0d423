// FAVOR+ (Choromanski et al. 2021): with x' = input_scale x and m rows R of the projection,
// phi = exp(-|x'|^2 / 2) / sqrt(2 m) [exp(R x'), exp(-R x')], exponents clipped. The tiles keep x'.
#pragma once

#include "../instruction_set.h"

#include "elementwise.h"

namespace fwp::FWP_NAMESPACE {
namespace {

template <class T> FWP_INLINE Vec<T> favor_feature(T constant, Vec<T> exponent) {
  const Vec<T> top = splat(T(largest_exponent));
  return exponential<T>(exponent > top ? top : exponent) * splat(constant);
}
template <class T> T favor_constant(idx m) { return T(1 / __builtin_sqrt(double(2 * m))); }

template <> struct Phi<Map::favor> {
  using Cache = KeptFeatures;
  static constexpr bool grouped = false;
  static idx base_rows(idx d_key) { return d_key; }

  template <class T, class Each> static FWP_INLINE void take(const Call<T>& c, Side<T>& s, Each each) {
    each([&](idx, idx at, Vec<T> x, Vec<T>&) FWP_INLINE_LAMBDA { store(s.x + at, x * splat(c.input_scale)); });
  }
  template <class T> static void features(const Call<T>& c, Side<T>& s) {
    const idx m = c.m;
    const T constant = favor_constant<T>(m);
    product<false>(m, s.padded, c.d_key, View<T>{c.projection, c.d_key, 1}, s.x, s.ld, s.phi, s.ld);
    for (idx t = 0; t < s.padded; t += width<T>) {
      Vec<T> norm{}, total{};
      for (idx d = 0; d < c.d_key; ++d) {
        const Vec<T> x = load(s.x + d * s.ld + t);
        norm += x * x;
      }
      norm *= splat(T(0.5));
      for (idx i = 0; i < m; ++i) {
        const Vec<T> p = load(s.phi + i * s.ld + t);
        const Vec<T> fp = favor_feature<T>(constant, p - norm), fm = favor_feature<T>(constant, -p - norm);
        store(s.phi + i * s.ld + t, fp);
        store(s.phi + (m + i) * s.ld + t, fm);
        total += fp + fm;
      }
      store(s.scale + t, total);
    }
  }

  template <class T>
  static FWP_INLINE void gradient(const Call<T>& c, const Side<T>& s, idx t, Vec<T> shift, T* df, T* dx) {
    const idx ld = s.ld, m = c.m;
    const Vec<T> scale = load(s.scale + t);
    // Clipped features have no gradient.
    const Vec<T> top = favor_feature<T>(favor_constant<T>(m), splat(T(largest_exponent)));
    Vec<T> norm{};
    for (idx i = 0; i < m; ++i) {
      T *plus = df + i * ld + t, *minus = df + (m + i) * ld + t;
      const auto of = [&](const T* g, idx i) FWP_INLINE_LAMBDA {
        const Vec<T> f = load(s.phi + i * ld + t);
        return f >= top ? Vec<T>{} : (load(g) - shift) * scale * f;
      };
      const Vec<T> gp = of(plus, i), gm = of(minus, m + i);
      norm += gp + gm;
      store(plus, gp - gm);
    }
    for (idx d = 0; d < c.d_key; ++d) store(dx + d * ld + t, -norm * load(s.x + d * ld + t));
  }
  template <class T> static void finish_gradient(const Call<T>& c, const Side<T>& s, T* df, T* dx) {
    product<true>(c.d_key, s.padded, c.m, View<T>{c.projection, 1, c.d_key}, df, s.ld, dx, s.ld);
    for (idx i = 0; i < c.d_key; ++i)
      for (idx t = 0; t < s.padded; ++t) dx[i * s.ld + t] *= c.input_scale;
  }

  template <class D, class T> static Vec<T> decode(const D& d, const T* from, T* f) {
    const auto& c = d.c;
    constexpr idx lanes = width<T>;
    const idx m = c.m, whole = m / lanes * lanes, mp = round_up(m, lanes);
    const T constant = favor_constant<T>(m);
    T norm = 0, *p = d.x, *plus = d.x + mp, *minus = d.x + 2 * mp;
    for (idx i = 0; i < c.d_key; ++i) norm += from[i] * from[i];
    norm *= c.input_scale * c.input_scale / 2;
    for (idx i = 0; i < whole; i += lanes) {
      Vec<T> sum{};
      for (idx k = 0; k < c.d_key; ++k) sum += splat(c.input_scale * from[k]) * load(c.projection + k * m + i);
      store(p + i, sum);
    }
    for (idx i = whole; i < mp; ++i) {
      p[i] = 0;
      for (idx k = 0; i < m && k < c.d_key; ++k) p[i] += c.input_scale * from[k] * c.projection[k * m + i];
    }
    for (idx i = 0; i < mp; i += lanes) {
      const Vec<T> a = load(p + i);
      store(plus + i, favor_feature<T>(constant, a - splat(norm)));
      store(minus + i, favor_feature<T>(constant, -a - splat(norm)));
    }
    for (idx i = 0; i < m; ++i) {
      f[i] = plus[i];
      f[m + i] = minus[i];
    }
    for (idx i = d.used; i < d.padded; ++i) f[i] = 0;
    return d.sum_of(f);
  }
};

}  // namespace
}  // namespace fwp::FWP_NAMESPACE
