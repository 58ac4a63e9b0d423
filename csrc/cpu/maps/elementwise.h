// phi for one instruction set: the functions that every map defines, and the maps that are a function of one number.
//
//     base_rows(d_key)              the number of rows of Side::x, from which features and gradients are computed
//     take(c, s, each)              stores loaded inputs in Side::x; a map that is a function of one number stores its
//                                   features, and adds them up. each(put) calls put(d, at, x, sum) with inputs d of
//                                   a vector of tokens, their place and the sum of the tokens' features
//     features(c, s)                computes the features of all other maps, with their sum in Side::scale
//     gradient(c, s, t, shift, df, dx)  for a vector of tokens, computes dx from df, the gradient of scaled features;
//                                   `shift` is what their normalisation subtracts from df. dx has base_rows or d_key
//                                   rows, whichever is more
//     finish_gradient(c, s, df, dx) completes dx for all tokens
//     grouped                       true if rows(c, s, j, first, count, put) computes a few features at a time (dpfp.h)
//     Cache                         the keys in the cache of decoding: KeptFeatures, or a type with the same functions
//     decode(d, from, f)            computes the features of a token, a row in padded blocks (decode.h); returns their
//                                   sum, if needed
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
  // May multiply some of the positions p .. end with N queries in its own way; returns the first position that is left.
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
  // Computes the features of a cached key.
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
