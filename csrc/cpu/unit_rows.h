// y = phi(x) / (|phi(x)| + eps), or phi(x) / sqrt(mean of phi(x)^2 + eps), of a row of n numbers, and back; phi is a
// function of one number.
#pragma once

#include "instruction_set.h"

#include "maps/elementwise.h"
#include "rows.h"

namespace fwp::FWP_NAMESPACE {
namespace {

template <class T, Map M, bool Rms> struct UnitRow {
  static constexpr idx lanes = width<T>;
  using Elementwise = Function<M>;
  static constexpr bool changes = M != Map::identity;

  static FWP_INLINE void features(const T* x, idx n, T* phi) {
    idx i = 0;
    for (; i + lanes <= n; i += lanes) store<T>(phi + i, Elementwise::template value<OfVectors<T>>(load(x + i)));
    if (i == n) return;
    T row[lanes] = {};
    for (idx j = i; j < n; ++j) row[j - i] = x[j];
    store<T>(row, Elementwise::template value<OfVectors<T>>(load(row)));
    for (idx j = i; j < n; ++j) phi[j] = row[j - i];
  }
  // The factor of the sum of squares under the root: 1/n for a mean, 1 for a norm.
  static FWP_INLINE T share(idx n) { return Rms ? 1 / T(n) : T(1); }
  static FWP_INLINE T root(const T* phi, idx n, T eps) {
    return __builtin_sqrt(dot_unpadded(phi, phi, n) * share(n) + (Rms ? eps : T(0)));
  }

  static void forward(const T* x, const T*, idx n, T eps, T* y) {
    const T* phi = x;
    if constexpr (changes) features(x, n, y), phi = y;
    const T factor = 1 / (root(phi, n, eps) + (Rms ? T(0) : eps));
    for (idx i = 0; i < n; ++i) y[i] = phi[i] * factor;
  }

  // dphi = dy / l - phi (phi.dy) share / (root l^2), l what phi is divided by; the length of zeros has the gradient 0.
  static void backward(const T* x, const T* dy, idx n, T eps, T* dx) {
    const T* phi = x;
    if constexpr (changes) features(x, n, dx), phi = dx;
    const T r = root(phi, n, eps), factor = 1 / (r + (Rms ? T(0) : eps));
    const T along = r == 0 ? T(0) : dot_unpadded(phi, dy, n) * share(n) * factor * factor / r;
    idx i = 0;
    for (; i + lanes <= n; i += lanes) {
      const Vec<T> f = load(phi + i), g = load(dy + i) * splat(factor) - f * splat(along);
      store<T>(dx + i, Elementwise::template back<OfVectors<T>>(g, f));
    }
    if (i == n) return;
    T f[lanes] = {}, g[lanes] = {};
    for (idx j = i; j < n; ++j) {
      f[j - i] = phi[j];
      g[j - i] = dy[j] * factor - phi[j] * along;
    }
    store<T>(g, Elementwise::template back<OfVectors<T>>(load(g), load(f)));
    for (idx j = i; j < n; ++j) dx[j] = g[j - i];
  }
};

}  // namespace
}  // namespace fwp::FWP_NAMESPACE
