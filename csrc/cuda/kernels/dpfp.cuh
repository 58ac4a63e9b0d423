// Features of DPFP in pairs of halves, and their gradients' way back.
//
// x lies in memory with what stands before it: x_{-j} = -x_{d_key - j}; beyond its end stand zeros up to a whole group of
// 8. With r = max(x, 0) of both signs, r_b r_{b-j} makes all features. Neighbours b .. b + 7 of both signs and one j make 16
// columns, for which j or, where nu is odd, b goes on in the next 16. Two 16s are a part, which a thread makes of a row.
#pragma once

#include "call.h"
#include "device.cuh"

namespace fwp::gpu {

// r, of one sign, of 8 neighbours, times those that stand j before: 8 columns. Where there is a pair, j is odd, and j + 1
// follows.
template <bool BELOW> FWP_DEVICE uint32_t clamp(uint32_t x) {
  return BELOW ? smaller_halves(x, 0) : larger_halves(x, 0);
}
template <bool BELOW>
FWP_DEVICE void make_sign(uint16_t* to, const Eight& here, const uint32_t (&before)[5], bool odd, bool pair) {
  uint32_t r[4], w[5];
  FWP_UNROLL (int n = 0; n < 4; ++n) r[n] = clamp<BELOW>(here.w[n]);
  FWP_UNROLL (int n = 0; n < 5; ++n) w[n] = clamp<BELOW>(before[n]);
  Eight f;
  FWP_UNROLL (int n = 0; n < 4; ++n) f.w[n] = multiply_halves(r[n], odd ? straddle(w[n], w[n + 1]) : w[n]);
  put_eight(to, f);
  if (!pair) return;
  FWP_UNROLL (int n = 0; n < 4; ++n) f.w[n] = multiply_halves(r[n], w[n]);
  put_eight(to + 16, f);
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
  const Eight here = eight(from);
  uint32_t before[5];
  load_window(before, here, from, j);
  make_sign<false>(to, here, before, pair || j % 2 == 1, pair);
  make_sign<true>(to + 8, here, before, pair || j % 2 == 1, pair);
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

// Adds to the gradients of r, and of those that stand j before, what those of 8 columns give.
FWP_DEVICE void back_columns(uint32_t (&own)[4], uint32_t (&before)[5], const uint32_t (&r)[4], const uint32_t (&w)[5],
                             const Eight& y, bool odd) {
  if (odd) {
    uint32_t last = 0;
    FWP_UNROLL (int n = 0; n < 4; ++n) {
      own[n] = fma_halves(y.w[n], straddle(w[n], w[n + 1]), own[n]);
      const uint32_t of_earlier = multiply_halves(y.w[n], r[n]);
      before[n] = add_halves(before[n], straddle(last, of_earlier));
      last = of_earlier;
    }
    before[4] = add_halves(before[4], straddle(last, 0));
  } else
    FWP_UNROLL (int n = 0; n < 4; ++n) {
      own[n] = fma_halves(y.w[n], w[n], own[n]);
      before[n] = fma_halves(y.w[n], r[n], before[n]);
    }
}
template <bool BELOW>
FWP_DEVICE void back_sign(uint32_t (&own)[4], uint32_t (&before)[5], const Eight& here, const uint32_t (&window)[5],
                          const uint16_t* y, bool odd, bool pair) {
  uint32_t r[4], w[5], dr[4] = {}, dw[5] = {};
  FWP_UNROLL (int n = 0; n < 4; ++n) r[n] = clamp<BELOW>(here.w[n]);
  FWP_UNROLL (int n = 0; n < 5; ++n) w[n] = clamp<BELOW>(window[n]);
  back_columns(dr, dw, r, w, eight(y), odd);
  if (pair) back_columns(dr, dw, r, w, eight(y + 16), false);
  FWP_UNROLL (int n = 0; n < 4; ++n) own[n] |= dr[n] & not_zero(r[n]);
  FWP_UNROLL (int n = 0; n < 5; ++n) before[n] |= dw[n] & not_zero(w[n]);
}
// The gradients of 8 neighbours and of their window, from those y of a group's columns.
FWP_DEVICE void back_group(uint32_t (&own)[4], uint32_t (&before)[5], const uint16_t* from, int j, const uint16_t* y,
                           bool pair) {
  const Eight here = eight(from);
  uint32_t window[5];
  load_window(window, here, from, j);
  back_sign<false>(own, before, here, window, y, pair || j % 2 == 1, pair);
  back_sign<true>(own, before, here, window, y + 8, pair || j % 2 == 1, pair);
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
