// Hedgehog's features of y = W x (Zhang et al. 2024): phi = [softmax(y), softmax(-y)], over the d_key numbers of y. The
// tiles keep y until its features are computed.
#pragma once

#include "../instruction_set.h"

#include "../softmax_pair.h"
#include "elementwise.h"

namespace fwp::FWP_NAMESPACE {
namespace {

template <> struct Phi<Map::softmax_pair> {
  using Cache = KeptFeatures;
  static constexpr bool grouped = false;
  static idx base_rows(idx d_key) { return d_key; }

  template <class T, class Each> static FWP_INLINE void take(const Call<T>&, Side<T>& s, Each each) {
    each([&](idx, idx at, Vec<T> y, Vec<T>&) FWP_INLINE_LAMBDA { store(s.x + at, y); });
  }
  template <class T> static void features(const Call<T>& c, Side<T>& s) {
    const idx n = c.d_key, ld = s.ld;
    for (idx t = 0; t < s.padded; t += width<T>) {
      const T* y = s.x + t;
      T *up = s.phi + t, *down = up + n * ld;
      Vec<T> most = load(y), least = most;
      for (idx i = 1; i < n; ++i) {
        const Vec<T> x = load(y + i * ld);
        most = x > most ? x : most;
        least = x < least ? x : least;
      }
      Vec<T> ups{}, downs{};
      for (idx i = 0; i < n; ++i) {
        const Vec<T> x = load(y + i * ld);
        const Vec<T> a = exponential<T>(x - most), b = exponential<T>(least - x);
        store(up + i * ld, a);
        store(down + i * ld, b);
        ups += a;
        downs += b;
      }
      const Vec<T> share_up = splat(T(1)) / ups, share_down = splat(T(1)) / downs;
      for (idx i = 0; i < n; ++i) {
        store(up + i * ld, load(up + i * ld) * share_up);
        store(down + i * ld, load(down + i * ld) * share_down);
      }
      store(s.scale + t, ups * share_up + downs * share_down);
    }
  }

  // dy = f+ (df+ - f+.df+) - f- (df- - f-.df-)
  template <class T>
  static FWP_INLINE void gradient(const Call<T>& c, const Side<T>& s, idx t, Vec<T> shift, T* df, T* dx) {
    const idx n = c.d_key, ld = s.ld;
    const T *f = s.phi + t, *g = df + t;
    Vec<T> up{}, down{};
    for (idx i = 0; i < n; ++i) {
      up += load(f + i * ld) * load(g + i * ld);
      down += load(f + (n + i) * ld) * load(g + (n + i) * ld);
    }
    const Vec<T> scale = load(s.scale + t);
    for (idx i = 0; i < n; ++i) {
      const Vec<T> a = load(f + i * ld) * (load(g + i * ld) - up);
      const Vec<T> b = load(f + (n + i) * ld) * (load(g + (n + i) * ld) - down);
      store(dx + i * ld + t, (a - b) * scale);
    }
  }
  template <class T> static void finish_gradient(const Call<T>&, const Side<T>&, T*, T*) {}

  template <class D, class T> static Vec<T> decode(const D& d, const T* from, T* f) {
    SoftmaxPair<T>::forward(from, nullptr, d.c.d_key, 0, f);
    for (idx i = d.used; i < d.padded; ++i) f[i] = 0;
    return d.sum_of(f);
  }
};

}  // namespace
}  // namespace fwp::FWP_NAMESPACE
