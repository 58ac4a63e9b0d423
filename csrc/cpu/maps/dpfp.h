// DPFP (Schlag et al. 2021, Eq. 37 and Listing 1): r = relu([x, -x]), phi_{j,i} = r_i r_{i-j} for the offsets j = 1 ..
// nu, with indices modulo 2 d_key. The tiles keep r, one row per number. Decoding keeps k, scaled, because phi(s k) =
// s^2 phi(k).
#pragma once

#include "../instruction_set.h"

#include "elementwise.h"

namespace fwp::FWP_NAMESPACE {
namespace {

// Calls put(i, a[i] b[i]) for rows of one vector each; returns their sum.
template <class T, class F> FWP_INLINE Vec<T> rolled_products(const T* a, const T* b, idx ld, idx count, F put) {
  Vec<T> sum{}, odd{};  // two sums, because with one each addition would wait for the previous one
  idx i = 0;
  for (; i + 2 <= count; i += 2, a += 2 * ld, b += 2 * ld) {
    const Vec<T> y = load(a) * load(b), z = load(a + ld) * load(b + ld);
    put(i, y);
    put(i + 1, z);
    sum += y;
    odd += z;
  }
  if (i < count) {
    const Vec<T> y = load(a) * load(b);
    put(i, y);
    sum += y;
  }
  return sum + odd;
}

// Decoding from keys. In memory, the r of a position follows its halo, the last nu numbers of r, which rolls read.
struct KeptKeys {
  static constexpr int in_registers =
      8;  // heads of 64 in vectors of 64 bytes; narrower vectors have fewer registers too

  template <class D, class T> static void keep(const D& d, const T* k, const T*, T scale, T* kept) {
    const T root = T(__builtin_sqrt(double(scale)));
    for (idx i = 0; i < d.c.d_key; ++i) kept[i] = k[i] * root;
  }
  // Stores r = relu([x, -x]) after its halo, followed by zeros.
  template <class D, class T> static void load_r(const D& d, const T* from, T* to) {
    constexpr idx lanes = width<T>;
    const idx d_key = d.c.d_key;
    to += d.halo;
    idx i = 0;
    if (d_key % lanes == 0) {
      for (; i < d_key; i += lanes) {
        const Vec<T> a = load(from + i);
        store(to + i, relu<T>(a));
        store(to + d_key + i, relu<T>(-a));
      }
    } else {
      for (; i < d_key; ++i) {
        to[i] = from[i] < 0 ? T(0) : from[i];
        to[d_key + i] = -from[i] < 0 ? T(0) : -from[i];
      }
      for (idx i = d.used; i < d.padded; ++i) to[i] = 0;
    }
    for (idx j = 1; j <= d.c.nu; ++j) to[-j] = to[d.used - j];
  }

  template <int N, class D, class T> static FWP_INLINE idx multiply(D& d, const T* f, idx p, idx end, idx query_size) {
    if constexpr (FWP_VECTOR_BYTES == 64)
      if (2 * d.c.d_key == in_registers * width<T>) {
        for (; p < end; ++p) multiply_rolled<N, in_registers>(d, f, p, query_size);
        return p;
      }
    for (idx t = p; t < end; ++t) load_r(d, d.keys[t], d.r + (t - p) * d.r_size);
    return p;
  }
  template <int N, int K, class D, class T>
  static FWP_INLINE void add_products(const D& d, const T* f, idx first, idx query_size, Vec<T> (&sum)[K][N]) {
    const T* rows = d.r + first % D::tile * d.r_size + d.halo;
    for (idx j = 1; j <= d.c.nu; ++j, f += d.padded)
      for (idx i = 0; i < d.padded; i += width<T>) {
        Vec<T> a[N];
        for (int n = 0; n < N; ++n) a[n] = load(f + n * query_size + i);
        for (int k = 0; k < K; ++k) {
          const Vec<T> y = load(rows + k * d.r_size + i) * load(rows + k * d.r_size + i - j);
          for (int n = 0; n < N; ++n) sum[k][n] += y * a[n];
        }
      }
  }
  // The same for one position and 2 d_key = `vectors` vectors: r stays in registers, and is rolled by one for each
  // offset. Memory would be slow: a rolled load crosses cache lines, or the stores that it reads.
  template <int N, int vectors, class D, class T>
  static FWP_INLINE void multiply_rolled(D& d, const T* f, idx p, idx query_size) {
    constexpr idx lanes = width<T>;
    Vec<T> own[vectors], rolled[vectors], sum[N] = {};
    unroll<vectors / 2>([&](auto v) FWP_INLINE_LAMBDA {
      const Vec<T> a = load(d.keys[p] + v * lanes);
      own[v] = rolled[v] = relu<T>(a);
      own[vectors / 2 + v] = rolled[vectors / 2 + v] = relu<T>(-a);
    });
    for (idx j = 1; j <= d.c.nu; ++j, f += d.padded) {
      const Vec<T> last = rolled[vectors - 1];
      unroll<vectors>([&](auto i) FWP_INLINE_LAMBDA {
        constexpr int v = vectors - 1 - i;
        if constexpr (v > 0) rolled[v] = picked<Roll<T>, T>(rolled[v - 1], rolled[v]);
        else rolled[v] = picked<Roll<T>, T>(last, rolled[v]);
        const Vec<T> y = own[v] * rolled[v];
        for (int n = 0; n < N; ++n) sum[n] += y * load(f + n * query_size + v * lanes);
      });
    }
    for (int n = 0; n < N; ++n) store(d.partial + (p % D::tile * N + n) * lanes, sum[n]);
  }
  template <class D, class T> static void features(const D& d, const T* kept, T* f) {
    load_r(d, kept, d.r);
    for (idx j = 1; j <= d.c.nu; ++j)
      for (idx i = 0; i < d.used; ++i) f[(j - 1) * d.used + i] = d.r[d.halo + i] * d.r[d.halo + i - j];
  }
};

template <> struct Phi<Map::dpfp> {
  using Cache = KeptKeys;
  static constexpr bool grouped = true;
  static idx base_rows(idx d_key) { return 2 * d_key; }

  template <class T, class Each> static FWP_INLINE void take(const Call<T>& c, Side<T>& s, Each each) {
    each([&](idx, idx at, Vec<T> x, Vec<T>&) FWP_INLINE_LAMBDA {
      store(s.x + at, relu<T>(x));
      store(s.x + c.d_key * s.ld + at, relu<T>(-x));
    });
  }
  // Features `first` .. first + count of DPFP's block j, products of rows of s.x: put(i, t, feature first + i of the
  // tokens from t on). Adds to the sums in s.scale.
  template <class T, class F>
  static FWP_INLINE void rows(const Call<T>& c, Side<T>& s, idx j, idx first, idx count, F put) {
    const idx n = 2 * c.d_key, ld = s.ld, end = first + count;
    for (idx t = 0; t < s.padded; t += width<T>) {
      Vec<T> total = load(s.scale + t);
      const T* x = s.x + t;
      idx i = first;
      if (i < j) {  // rolled in from the other end
        const idx part = (end < j ? end : j) - i;
        total += rolled_products(x + i * ld, x + (i - j + n) * ld, ld, part,
                                 [&](idx at, Vec<T> y) FWP_INLINE_LAMBDA { put(at, t, y); });
        i += part;
      }
      if (i < end)
        total += rolled_products(x + i * ld, x + (i - j) * ld, ld, end - i,
                                 [&](idx at, Vec<T> y) FWP_INLINE_LAMBDA { put(i - first + at, t, y); });
      store(s.scale + t, total);
    }
  }
  template <class T> static void features(const Call<T>& c, Side<T>& s) {
    for (idx j = 1; j <= c.nu; ++j) {
      T* to = s.phi + (j - 1) * 2 * c.d_key * s.ld;
      rows(c, s, j, 0, 2 * c.d_key, [&](idx i, idx t, Vec<T> y) FWP_INLINE_LAMBDA { store(to + i * s.ld + t, y); });
    }
  }

  template <class T>
  static FWP_INLINE void gradient(const Call<T>& c, const Side<T>& s, idx t, Vec<T> shift, T* df, T* dx) {
    const idx ld = s.ld, n = 2 * c.d_key;
    const Vec<T> scale = load(s.scale + t);
    const T* r = s.x + t;
    for (idx i = 0; i < n; ++i) {
      Vec<T> g{};
      for (idx j = 1; j <= c.nu; ++j) {  // r_i is in r_i r_{i-j} and in r_{i+j} r_i
        const T* block = df + (j - 1) * n * ld + t;
        const idx below = i < j ? i - j + n : i - j, above = i + j < n ? i + j : i + j - n;
        g += (load(block + i * ld) - shift) * load(r + below * ld);
        g += (load(block + above * ld) - shift) * load(r + above * ld);
      }
      store(dx + i * ld + t, g * scale);
    }
    for (idx i = 0; i < c.d_key; ++i) {
      const Vec<T> zero{};
      const auto of = [&](idx i) FWP_INLINE_LAMBDA { return load(r + i * ld) <= zero ? zero : load(dx + i * ld + t); };
      const Vec<T> plus = of(i), minus = of(c.d_key + i);
      store(dx + i * ld + t, plus - minus);
    }
  }
  template <class T> static void finish_gradient(const Call<T>&, const Side<T>&, T*, T*) {}

  template <class D, class T> static Vec<T> decode(const D& d, const T* from, T* f) {
    Vec<T> total{};
    KeptKeys::load_r(d, from, d.r);
    for (idx j = 1; j <= d.c.nu; ++j)
      for (idx i = 0; i < d.padded; i += width<T>) {
        const Vec<T> y = load(d.r + d.halo + i) * load(d.r + d.halo + i - j);
        store(f + (j - 1) * d.padded + i, y);
        total += y;
      }
    return total;
  }
};

}  // namespace
}  // namespace fwp::FWP_NAMESPACE
