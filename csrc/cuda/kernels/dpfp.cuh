// DPFP features, computed two halves at a time, and the gradient of x from theirs.
//
// In memory, x is preceded by x_{-j} = -x_{d_key - j} and followed by zeros up to a multiple of 8. The features are the
// products r_b r_{b-j} with r = max(x, 0) and with r = max(-x, 0). A group of 8 neighbours b .. b + 7, both signs and
// one offset j give 16 columns. The next 16 columns have the next j or, if nu is odd, the next group. Two times 16
// columns are a part, which one thread computes for a row.
#pragma once

#include "call.h"
#include "device.cuh"

namespace fwp::gpu {

// The two numbers at distance j before those of word n, from a window w that begins with them or, if ODD, one number
// earlier.
template <bool ODD> FWP_DEVICE uint32_t earlier(const uint32_t (&w)[5], int n) {
  return ODD ? straddle(w[n], w[n + 1]) : w[n];
}
// Computes 8 features of each sign for one j. A positive product belongs to the sign that both of its numbers have.
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
// The features of 8 neighbours for j and, if `pair`, j + 1 need a window of 10 numbers, which begins this many numbers
// before the neighbours.
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

// Calls f(first input, first j, first column within the part, whether the group exists) for the groups of a part.
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
// The index of the feature in a column of all parts, in the caller's order; -1 for an unused column.
FWP_BOTH int feature_of(const Call& c, int column) {
  if (!is_dpfp(c)) return column < c.d_dot ? column : -1;
  const int part = column / 32, turn = part / parts_of_j(c), first = part % parts_of_j(c), sixteen = column / 16 % 2;
  const bool pairs = c.nu % 2 == 0;
  const int j = pairs ? 2 * turn + 1 + sixteen : turn + 1, b = 8 * (pairs ? first : 2 * first + sixteen) + column % 8;
  return b < c.d_key ? (2 * (j - 1) + column / 8 % 2) * c.d_key + b : -1;
}

// Adds to the gradients of 8 neighbours and of their window what follows from y, the gradients of the 16 columns of one
// j.
template <bool ODD>
FWP_DEVICE void back_columns(uint32_t* own, uint32_t* before, const Eight& x, const uint32_t (&negative)[4],
                             const uint32_t (&w)[5], const uint16_t* y) {
  const Eight above = eight(y), below = eight(y + 8);
  uint32_t last = 0;  // gradients of x_{b-j}; the second half belongs to the next word
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
// The same for all columns of a group. `own` may be the last four words of `before`.
FWP_DEVICE void back_group(uint32_t* own, uint32_t* before, const uint16_t* from, int j, const uint16_t* y, bool pair) {
  const Eight x = eight(from);
  uint32_t negative[4], window[5];
  FWP_UNROLL (int n = 0; n < 4; ++n) negative[n] = signs(x.w[n]);
  load_window(window, x, from, j);
  if (pair || j % 2 == 1) back_columns<true>(own, before, x, negative, window, y);
  if (pair || j % 2 == 0) back_columns<false>(own, before, x, negative, window, pair ? y + 16 : y);
}
// Adds halves, multiplied by `by`, to floats.
template <int N> FWP_DEVICE void add_words(float* to, const uint32_t (&x)[N], float by) {
  float y[2 * N];
  FWP_UNROLL (int n = 0; n < N; ++n) y[2 * n] = to[2 * n], y[2 * n + 1] = to[2 * n + 1];
  FWP_UNROLL (int n = 0; n < N; ++n) {
    to[2 * n] = y[2 * n] + by * first_half(x[n]);
    to[2 * n + 1] = y[2 * n + 1] + by * second_half(x[n]);
  }
}

}  // namespace fwp::gpu
