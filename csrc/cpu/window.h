// Causal attention of one head within a window, to which sums over earlier positions are added. The query at position p
// reads
//
//     e_j = exp(s_j - largest),  s_j = q.k_j / sqrt(d),  for p - size < j <= p that are not padding
//     y = (sum_j e_j v_j + g N) / (sum_j e_j + g den),  g = exp(min(u.q + bias, 30))
//
// where `largest` is the largest s_j, and [N, den] its row of sums, if it has one. Keys and values are padded with zeros
// to whole vectors in scratch. The backward computes e and g again.
#pragma once

#include "instruction_set.h"

#include "rows.h"

namespace fwp::FWP_NAMESPACE {
namespace {

template <class T> struct Window {
  typedef WindowCall<T> Call;
  static constexpr idx lanes = width<T>;
  static constexpr T largest_exponent = T(fwp::largest_exponent), lowest = T(-1e30);

  // The arrays of one head, in rows of D numbers.
  struct Place {
    const Call& c;
    idx b, h, D, span;
    T *K, *V, *dK, *dV, *e, *de, *ties, *q, *x, *y, *N, *u, *du;

    Place(const Call& c, idx b, idx h, T* own) : c(c), b(b), h(h), D(round_up(c.d, lanes)), span(longest(c)) {
      const idx rows = c.sources * D;
      K = own, V = K + rows, dK = V + rows, dV = dK + rows, e = dV + rows, de = e + span, ties = de + span;
      q = ties + span;
      x = q + D, y = x + D, N = y + D, u = N + D, du = u + D;
    }
    // The first position that query t reads, and how many there are.
    idx position(idx t) const { return c.sources - c.targets + t; }
    idx first(idx t) const { return position(t) < c.size ? 0 : position(t) - c.size + 1; }
    idx count(idx t) const { return position(t) - first(t) + 1; }
    bool is_pad(idx j) const { return fwp::is_pad(c.key_padding_mask, b, j); }
    // The row of sums of query t; null if it has none.
    const T* far(idx t) const { return t < c.targets - c.far ? nullptr : c.sums.at(b, t - c.targets + c.far, h); }
  };

  static idx longest(const Call& c) { return round_up(c.size < c.sources ? c.size : c.sources, lanes); }
  static std::size_t scratch(const Call& c) {
    const idx D = round_up(c.d, lanes);
    return 4 * c.sources * D + 3 * longest(c) + 6 * D;
  }

  static void fetch(const Place& at) {
    const Call& c = at.c;
    fetch_row(at.u, c.u + at.h * c.d, c.d, at.D);
    for (idx j = 0; j < c.sources; ++j) {
      const idx row = c.places ? *c.places.at(at.b, j, 0) : at.b, position = c.places ? 0 : j;
      fetch_row(at.K + j * at.D, c.k.at(row, position, at.h), c.d, at.D);
      fetch_row(at.V + j * at.D, c.v.at(row, position, at.h), c.d, at.D);
    }
  }

  // to_j = x . row j of M, whole vectors of j at a time; beyond `count` they are 0.
  static FWP_INLINE void products(const T* x, const T* M, idx count, idx D, T* to) {
    for (idx first = 0; first < count; first += lanes) {
      Vec<T> sums[lanes];
      for (idx j = 0; j < lanes; ++j) {
        sums[j] = Vec<T>{};
        if (first + j < count)
          for (idx i = 0; i < D; i += lanes) sums[j] += load(x + i) * load(M + (first + j) * D + i);
      }
      store<T>(to + first, sum_of_rows<T>(sums));
    }
  }
  // to = sum_j x_j row j of M.
  static FWP_INLINE void combine(const T* x, const T* M, idx count, idx D, T* to) {
    for_groups<T>(D, [&](idx i, auto C) FWP_INLINE_LAMBDA {
      Vec<T> sums[C.value]{};
      for (idx j = 0; j < count; ++j) {
        const Vec<T> factor = splat(x[j]);
        unroll<C.value>([&](auto c) FWP_INLINE_LAMBDA { sums[c] += factor * load(M + j * D + i + c * lanes); });
      }
      unroll<C.value>([&](auto c) FWP_INLINE_LAMBDA { store<T>(to + i + c * lanes, sums[c]); });
    });
  }
  // row j of M += x_j y.
  static FWP_INLINE void add(const T* x, const T* y, T* M, idx count, idx D) {
    for_groups<T>(D, [&](idx i, auto C) FWP_INLINE_LAMBDA {
      Vec<T> row[C.value];
      unroll<C.value>([&](auto c) FWP_INLINE_LAMBDA { row[c] = load(y + i + c * lanes); });
      for (idx j = 0; j < count; ++j) {
        const Vec<T> factor = splat(x[j]);
        unroll<C.value>([&](auto c) FWP_INLINE_LAMBDA {
          T* to = M + j * D + i + c * lanes;
          store<T>(to, load(to) + factor * row[c]);
        });
      }
    });
  }
  struct Weights {
    T largest, total, gain, logit, den;
    bool far;
  };

  // e of the positions that query t reads, 0 at pads, and its row [N, den] of sums. If it may read nothing, total is 0.
  // With `with_ties`, ties_j is 1 where s_j is the largest, else 0; e_j is also 1 where s_j is a little smaller.
  static FWP_INLINE Weights weigh(const Place& at, idx t, bool with_ties) {
    const Call& c = at.c;
    const idx first = at.first(t), count = at.count(t);
    fetch_row(at.q, c.q.at(at.b, t, at.h), c.d, at.D);
    products(at.q, at.K + first * at.D, count, at.D, at.e);
    Weights found{lowest, 0, 0, 0, 0, false};
    for (idx j = 0; j < count; ++j) {
      at.e[j] = at.is_pad(first + j) ? lowest : at.e[j] * c.scale;
      if (at.e[j] > found.largest) found.largest = at.e[j];
    }
    if (with_ties)
      for (idx j = 0; j < count; ++j) at.ties[j] = at.e[j] == found.largest;
    const Vec<T> shift = splat(found.largest);
    for (idx j = 0; j < count; j += lanes) store<T>(at.e + j, exponential<T>(load(at.e + j) - shift));
    for (idx j = 0; j < count; ++j) {
      if (at.is_pad(first + j)) at.e[j] = 0;
      found.total += at.e[j];
    }
    if (const T* sums = at.far(t)) {
      found.far = true;
      fetch_row(at.N, sums, c.d, at.D);
      found.den = sums[c.d];
      found.logit = dot(at.u, at.q, at.D) + c.bias[at.h];
      const T bounded = found.logit > largest_exponent ? largest_exponent : found.logit;
      found.gain = exponential<T>(splat(bounded))[0];
      found.total += found.gain * found.den;
    }
    return found;
  }

  static void forward(const Call& c, idx b, idx h, T* own) {
    const Place at(c, b, h, own);
    fetch(at);
    for (idx t = 0; t < c.targets; ++t) {
      const Weights found = weigh(at, t, false);
      const idx first = at.first(t), count = at.count(t);
      combine(at.e, at.V + first * at.D, count, at.D, at.x);
      if (found.far) add(&found.gain, at.N, at.x, 1, at.D);
      const Vec<T> share = splat(found.total == 0 ? T(0) : T(1) / found.total);
      for (idx i = 0; i < at.D; i += lanes) store<T>(at.x + i, load(at.x + i) * share);
      put_row(c.out.at(b, t, h), at.x, c.d);
    }
  }

  static void backward(const Call& c, idx b, idx h, T* own) {
    const Place at(c, b, h, own);
    T dbias = 0;
    fetch(at);
    for (idx i = 0; i < c.sources * at.D; ++i) at.dK[i] = at.dV[i] = 0;
    for (idx i = 0; i < at.D; ++i) at.du[i] = 0;
    for (idx t = 0; t < c.targets; ++t) {
      const Weights found = weigh(at, t, true);
      const idx first = at.first(t), count = at.count(t);
      const T share = found.total == 0 ? T(0) : T(1) / found.total;
      // x is the gradient of the numerator; that of the denominator is -x.y.
      fetch_row(at.x, c.grad_out.at(b, t, h), c.d, at.D);
      for (idx i = 0; i < at.D; ++i) at.x[i] *= share;
      products(at.x, at.V + first * at.D, count, at.D, at.de);
      T along = 0, dgain = 0;
      for (idx j = 0; j < count; ++j) along += at.e[j] * at.de[j];
      if (found.far) {
        dgain = dot(at.x, at.N, at.D);
        along += found.gain * dgain;
      }
      const T dtotal = -along * share;
      // `largest` is one of the s_j, or several, which share its gradient.
      T dlargest = 0, equal = 0;
      for (idx j = 0; j < count; ++j) {
        at.de[j] = at.e[j] * (at.de[j] + dtotal);
        dlargest += at.de[j];
        equal += at.ties[j];
      }
      const T each = equal > 0 ? dlargest / equal : T(0);
      for (idx j = 0; j < count; ++j) at.de[j] = (at.de[j] - at.ties[j] * each) * c.scale;
      add(at.e, at.x, at.dV + first * at.D, count, at.D);
      add(at.de, at.q, at.dK + first * at.D, count, at.D);
      combine(at.de, at.K + first * at.D, count, at.D, at.y);
      if (found.far) {
        T* dsums = c.grad_sums.at(b, t - c.targets + c.far, h);
        expect_row<true>(dsums, c.d);
        for (idx i = 0; i < c.d; ++i) dsums[i] = found.gain * at.x[i];
        dsums[c.d] = found.gain * dtotal;
        const T dlogit = found.logit > largest_exponent ? T(0) : found.gain * (dgain + dtotal * found.den);
        add(&dlogit, at.u, at.y, 1, at.D);
        add(&dlogit, at.q, at.du, 1, at.D);
        dbias += dlogit;
      }
      put_row(c.grad_q.at(b, t, h), at.y, c.d);
    }
    for (idx j = 0; j < c.sources; ++j) {
      put_row(c.grad_k.at(b, j, h), at.dK + j * at.D, c.d);
      put_row(c.grad_v.at(b, j, h), at.dV + j * at.D, c.d);
    }
    put_row(c.grad_u + (b * c.heads + h) * c.d, at.du, c.d);
    c.grad_bias[b * c.heads + h] = dbias;
  }
};

}  // namespace
}  // namespace fwp::FWP_NAMESPACE
