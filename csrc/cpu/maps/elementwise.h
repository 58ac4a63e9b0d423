// phi for one instruction set: what every map defines, and the maps that are a function of one number.
//
//     base_rows(d_key)              rows of what features and gradient need of the inputs (Side::x)
//     take(c, s, each)              through each(put(d, at, inputs d of a vector of tokens, sum of features)): Side::x
//                                   and, if they take one input each, features with their sum
//     features(c, s)                the others, with their sum in Side::scale
//     gradient(c, s, t, shift, df, dx)  for a vector of tokens: from df, the gradient of the scaled features, and what
//                                   normalising them takes off, `shift`, to dx (larger of base_rows and d_key rows)
//     finish_gradient(c, s, df, dx) what remains to do for all tokens at once
//     grouped                       rows(c, s, j, first, count, put) gives a few features at a time, see dpfp.h
//     Cache                         what decoding keeps of a key: KeptFeatures, or a type with the same functions
//     decode(d, from, f)            features of a token, a row in padded blocks (see decode.h); their sum, if needed
//
// The arithmetic must not depend on the number of tokens in a tile.
#pragma once

#include "../instruction_set.h"

#include <type_traits>

#include "../../common/elementwise.h"
#include "../product.h"
#include "../side.h"

namespace fwp::FWP_NAMESPACE {
namespace {

// Returns f(the map as a constant).
template <class F> FWP_INLINE decltype(auto) with_map(Map map, F f) {
#define FWP_MAP_CASE(name)                                                                                             \
  if (map == Map::name) return f(std::integral_constant<Map, Map::name>{});
  FWP_MAPS(FWP_MAP_CASE)
#undef FWP_MAP_CASE
  __builtin_unreachable();
}

// The device of common/elementwise.h.
template <class T> struct OfVectors {
  using Number = Vec<T>;
  static FWP_INLINE Number number(double x) { return splat(T(x)); }
  template <class C> static FWP_INLINE Number where(C condition, Number a, Number b) { return condition ? a : b; }
  static FWP_INLINE Number exponential(Number x) { return FWP_NAMESPACE::exponential<T>(x); }
};

// Decoding from features of keys. `D`: the Decoder.
struct KeptFeatures {
  // Stores a key in the cache, as its scaled features.
  template <class D, class T> static void keep(const D& d, const T*, const T* features, T, T* kept) {
    for (idx i = 0; i < d.used; ++i) kept[i] = features[i];
  }
  // Multiplies what it can of the positions p .. end with N queries by itself; returns where it stopped.
  template <int N, class D, class T> static FWP_INLINE idx multiply(D&, const T*, idx p, idx, idx) { return p; }
  // sum[k][n] += products of position first + k with query n
  template <int N, int K, class D, class T>
  static FWP_INLINE void add_products(const D& d, const T* f, idx first, idx query_size, Vec<T> (&sum)[K][N]) {
    const idx whole = d.used / width<T> * width<T>;
    for (idx i = 0; i < whole; i += width<T>) {
      Vec<T> a[N];
      for (int n = 0; n < N; ++n) a[n] = load(f + n * query_size + i);
      for (int k = 0; k < K; ++k) {
        const Vec<T> y = load(d.keys[first + k] + i);
        for (int n = 0; n < N; ++n) sum[k][n] += y * a[n];
      }
    }
    for (idx i = whole; i < d.used; ++i)
      for (int k = 0; k < K; ++k)
        for (int n = 0; n < N; ++n) sum[k][n][0] += d.keys[first + k][i] * f[n * query_size + i];
  }
  // Features of what was kept.
  template <class D, class T> static void features(const D& d, const T* kept, T* f) {
    for (idx i = 0; i < d.used; ++i) f[i] = kept[i];
  }
};

template <Map M> struct Phi {
  using Cache = KeptFeatures;
  static constexpr bool grouped = false;
  static idx base_rows(idx) { return 0; }

  template <class T, class Each> static FWP_INLINE void take(const Call<T>&, Side<T>& s, Each each) {
    each([&](idx, idx at, Vec<T> x, Vec<T>& total) FWP_INLINE_LAMBDA {
      const Vec<T> f = Function<M>::template value<OfVectors<T>>(x);
      store(s.phi + at, f);
      total += f;
    });
  }
  template <class T> static void features(const Call<T>&, Side<T>&) {}

  template <class T>
  static FWP_INLINE void gradient(const Call<T>& c, const Side<T>& s, idx t, Vec<T> shift, T* df, T* dx) {
    const idx ld = s.ld;
    const Vec<T> scale = load(s.scale + t);
    for (idx i = 0; i < c.d_dot; ++i) {
      const Vec<T> g = (load(df + i * ld + t) - shift) * scale;
      store(dx + i * ld + t, Function<M>::template back<OfVectors<T>>(g, load(s.phi + i * ld + t)));
    }
  }
  template <class T> static void finish_gradient(const Call<T>&, const Side<T>&, T*, T*) {}

  template <class D, class T> static Vec<T> decode(const D& d, const T* from, T* f) {
    for (idx i = 0; i < d.used; ++i) f[i] = from[i];
    for (idx i = 0; i < d.padded; i += width<T>) store(f + i, Function<M>::template value<OfVectors<T>>(load(f + i)));
    for (idx i = d.used; i < d.padded; ++i) f[i] = 0;
    return d.sum_of(f);
  }
};

}  // namespace
}  // namespace fwp::FWP_NAMESPACE
