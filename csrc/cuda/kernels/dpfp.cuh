// Features of DPFP in pairs of halves, and their gradients' way back.
//
// x lies in memory with what stands before it: x_{-j} = -x_{d_key - j}; beyond its end stand zeros up to a whole group of
// 8. With r = max(x, 0) of both signs, r_b r_{b-j} makes all features. Neighbours b .. b + 7 of both signs and one j make 16
// columns, for which j or, where nu is odd, b goes on in the next 16. Two 16s are a part, which a thread makes of a row.
#pragma once

#include "call.h"
#include "device.cuh"

namespace fwp::gpu {

// Those that stand j before the numbers of word n, of a window w that begins at them, or if ODD a number earlier.
template <bool ODD> FWP_DEVICE uint32_t earlier(const uint32_t (&w)[5], int n) {
  return ODD ? straddle(w[n], w[n + 1]) : w[n];
}
// 8 features of each sign, of one j: products that are above 0, each of which has the sign of both its numbers.
template <bool ODD>
FWP_DEVICE void make_columns(uint16_t* to, const Eight& x, const uint32_t (&negative)[4], const uint32_t (&w)[5]) {
  Eight above, below;
  FWP_UNROLL (int n = 0; n < 4; ++n) {
    const uint32_t f = positive_product(x.w[n], earlier<ODD>(w, n));
    below.w[n] = f & negative[n];
    above.w[n] = f ^ below.w[n];
  }
  put_eight(to, above), put_eight(to + 8, below);
}
// 8 neighbours, and 10 that begin so many before them: the features of this j and j + 1 (PAIR) are made of these.
FWP_BOTH int window_of(int j) { return (j + 1) & ~1; }
FWP_DEVICE void load_window(uint32_t (&before)[5], const Eight& here, const uint16_t* from, int j) {
  FWP_UNROLL (int n = 1; n < 5; ++n) before[n] = here.w[n - 1];
  if (j <= 2) before[0] = *reinterpret_cast<const uint32_t*>(from - 2);
  else
    FWP_UNROLL (int n = 0; n < 5; ++n) before[n] = *reinterpret_cast<const uint32_t*>(from - window_of(j) + 2 * n);
}
FWP_DEVICE void make_group(uint16_t* to, const uint16_t* from, int j, bool pair) {
  const Eight x = eight(from);
  uint32_t negative[4], window[5];
  FWP_UNROLL (int n = 0; n < 4; ++n) negative[n] = signs(x.w[n]);
  load_window(window, x, from, j);
  if (pair || j % 2 == 1) make_columns<true>(to, x, negative, window);
  if (pair || j % 2 == 0) make_columns<false>(pair ? to + 16 : to, x, negative, window);
}

// Calls f(first input, (first) j, place in the part's columns, whether there is one) for the groups of a part.
template <class F> FWP_DEVICE void each_group(const Call& c, int part, F f) {
  const bool pair = c.nu % 2 == 0;
  const int turn = c.nu <= 2 ? 0 : part / parts_of_j(c), first = part - turn * parts_of_j(c);
  FWP_ROLLED (int u = 0; u < (pair ? 1 : 2); ++u) {
    const int group = pair ? first : 2 * first + u;
    f(8 * group, pair ? 2 * turn + 1 : turn + 1, 16 * u, part < parts_of(c) && group < groups_of(c));
  }
}
FWP_DEVICE void make_part(const Call& c, uint16_t* to, const uint16_t* x, int part) {
  each_group(c, part, [&](int b, int j, int column, bool there) {
    if (there) make_group(to + column, x + b, j, c.nu % 2 == 0);
    else put_eight(to + column, {}), put_eight(to + column + 8, {});
  });
}
// The number that the caller counts a column of all parts by, or -1.
FWP_BOTH int feature_of(const Call& c, int column) {
  if (!is_dpfp(c)) return column < c.d_dot ? column : -1;
  const int part = column / 32, turn = part / parts_of_j(c), first = part % parts_of_j(c), sixteen = column / 16 % 2;
  const bool pairs = c.nu % 2 == 0;
  const int j = pairs ? 2 * turn + 1 + sixteen : turn + 1, b = 8 * (pairs ? first : 2 * first + sixteen) + column % 8;
  return b < c.d_key ? (2 * (j - 1) + column / 8 % 2) * c.d_key + b : -1;
}

// Adds to the gradients of 8 neighbours, and of their window, what those y of a j's columns give.
template <bool ODD>
FWP_DEVICE void back_columns(uint32_t* own, uint32_t* before, const Eight& x, const uint32_t (&negative)[4],
                             const uint32_t (&w)[5], const uint16_t* y) {
  const Eight above = eight(y), below = eight(y + 8);
  uint32_t last = 0;  // of a product that belongs to x_{b-j}, its second number is of the next word
  FWP_UNROLL (int n = 0; n < 4; ++n) {
    const uint32_t b = x.w[n], a = earlier<ODD>(w, n);
    const uint32_t d = chosen(negative[n], below.w[n], above.w[n]) & not_zero(positive_product(b, a));
    own[n] = fma_halves(d, a, own[n]);
    if (ODD) {
      const uint32_t of_earlier = multiply_halves(d, b);
      before[n] = add_halves(before[n], straddle(last, of_earlier));
      last = of_earlier;
    } else before[n] = fma_halves(d, b, before[n]);
  }
  if (ODD) before[4] = add_halves(before[4], straddle(last, 0));
}
// The same of a group. `own` may be the window's last four words.
FWP_DEVICE void back_group(uint32_t* own, uint32_t* before, const uint16_t* from, int j, const uint16_t* y, bool pair) {
  const Eight x = eight(from);
  uint32_t negative[4], window[5];
  FWP_UNROLL (int n = 0; n < 4; ++n) negative[n] = signs(x.w[n]);
  load_window(window, x, from, j);
  if (pair || j % 2 == 1) back_columns<true>(own, before, x, negative, window, y);
  if (pair || j % 2 == 0) back_columns<false>(own, before, x, negative, window, pair ? y + 16 : y);
}
// Adds words of halves times `by` to floats.
template <int N> FWP_DEVICE void add_words(float* to, const uint32_t (&x)[N], float by) {
  float y[2 * N];
  FWP_UNROLL (int n = 0; n < N; ++n) y[2 * n] = to[2 * n], y[2 * n + 1] = to[2 * n + 1];
  FWP_UNROLL (int n = 0; n < N; ++n) {
    to[2 * n] = y[2 * n] + by * first_half(x[n]);
    to[2 * n + 1] = y[2 * n + 1] + by * second_half(x[n]);
  }
}

}  // namespace fwp::gpu
