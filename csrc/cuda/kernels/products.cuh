// The products that forward and backward are made of, except those with a state. Equations: docs/kernels.md.
//
// A *strip* is the 16 rows of a tokens x tokens matrix that belong to a warp's tokens. It lies in accumulators, where
// strip[n][..] covers the columns 8 n .. 8 n + 7. As these already have the layout of an A operand, no tokens x tokens
// matrix ever goes to memory.
#pragma once

#include "head.cuh"

namespace fwp::gpu {

template <class P, int LT, Kind K, int COLUMNS = value_block, int TEAMS = 1>
struct Products : Head<P, LT, K, COLUMNS, TEAMS> {
  using Base = Head<P, LT, K, COLUMNS, TEAMS>;
  using Base::a_down, Base::b_down, Base::base_rows, Base::c, Base::clear, Base::for_features, Base::for_slabs,
      Base::for_strip, Base::g, Base::is_favor, Base::with_phi, Base::key_there, Base::lane, Base::ld, Base::load,
      Base::modulus, Base::offset, Base::query_there, Base::quad_sum, Base::row, Base::row_of, Base::s, Base::several, Base::states, Base::store,
      Base::stride, Base::strip_tiles, Base::t, Base::tiles, Base::value_tiles;
  using Base::Base;
  using typename Base::Element, typename Base::Pair, typename Base::Strip, typename Base::Values;

  // ---- features ----

  // How many tiles' operands are loaded without waiting for each other: two where registers suffice.
  static constexpr int together = P::scaled && !states && LT > 16 && LT < longest_segment ? 2 : 1;

  // Features of N times 16 tokens as operands O, in pairs along features (down) or along tokens (across). at(n) is the
  // operand's corner in the base rows; a rolled operand is the product with the rows `roll` elements away. All loads
  // come before the first use, so that they do not wait for each other.
  template <class O, bool ROLLED, int N, class F>
  FWP_DEVICE void load_features(Pair (&p)[N][4], int roll, F at) const {
    FWP_UNROLL for (int n = 0; n < N; ++n) P::template load<O, ld>(p[n], at(n));
    if constexpr (ROLLED) {
      Pair other[N][4];
      FWP_UNROLL for (int n = 0; n < N; ++n) P::template load<O, ld>(other[n], at(n) + roll);
      FWP_UNROLL for (int n = 0; n < N; ++n)
        FWP_UNROLL for (int i = 0; i < 4; ++i) p[n][i] = P::multiply(p[n][i], other[n][i]);
    }
  }
  // 16 features of own tokens from base row i on, for N sides, in pairs along features; 0 past the last feature.
  template <bool ROLLED, int N, class F> FWP_DEVICE void own_features(Pair (&p)[N][4], int j, int i, F side) const {
    load_features<A_down, ROLLED>(p, -j * ld, [&](int n) { return side(n) + a_down + row + i * ld; });
    if (ROLLED && i + 16 > modulus)
      FWP_UNROLL for (int n = 0; n < N; ++n)
        FWP_UNROLL for (int e = 0; e < 4; ++e) {
          const int feature = i + 2 * t + 8 * (e >> 1);
          p[n][e] = P::keep(p[n][e], feature < modulus, feature + 1 < modulus);
        }
  }

  // What numerators are multiplied by, given the denominator; 0 where that is 0.
  FWP_DEVICE float rate_of(float total) const { return c.normalize_output ? reciprocal(total) : 1.f; }

  // The factor that turns a token's stored features, whose sum is `sum`, into those that the rule sees.
  FWP_DEVICE float scale_of(float unit, float sum, bool there) const {
    const float factor = with_phi([&](auto map) { return Phi<map.value>::factor(unit, c.d_dot); });
    if (!there) return 0;
    if (!c.normalize_features) return factor;
    // This is factor / (factor sum + eps), but also serves where the factor is too small for a float.
    return reciprocal(sum + (c.eps == 0 ? 0.f : quotient(c.eps, factor)));
  }

  // P_q += own queries . keys of the tiles before last_q, for delta P_k += own keys . keys of those before last_k;
  // sum_q, sum_k += own features. Every 16 features, begin(slab, j, i) is called before and use(own features) after.
  template <bool DELTA> using KeyStrip = float[DELTA ? strip_tiles : 1][4];
  template <bool DELTA, int TOGETHER, class F, class G>
  FWP_DEVICE void grams(Strip& P_q, KeyStrip<DELTA>& P_k, float (&sum_q)[4], float (&sum_k)[4], int last_q, int last_k,
                        F begin, G use) {
    const Pair one = P::pair(1, 1);
    for_slabs([&](int slab) {
      for_features([&](auto rolled, int j, int i) {
        begin(slab, j, i);
        Pair own[2][4];  // query, key
        own_features<rolled.value>(own, j, i, [&](int n) { return n ? s.keys : s.queries; });
        P::mma(sum_q, own[0], one, one);  // even if unneeded: cheaper than a test
        P::mma(sum_k, own[1], one, one);
        const Element* keys = s.keys + b_down + i * ld;
        FWP_UNROLL for (int at = 0; at < tiles; at += TOGETHER)
          if (at < last_q || (DELTA && at < last_k)) {
            Pair other[TOGETHER][4];
            load_features<B_down, rolled.value>(other, -j * ld, [&](int n) { return keys + 16 * (at + n); });
            FWP_UNROLL for (int n = 0; n < TOGETHER; ++n) {
              const int m = at + n;
              if (m < last_q) {
                P::mma(P_q[2 * m], own[0], other[n][0], other[n][1]);
                P::mma(P_q[2 * m + 1], own[0], other[n][2], other[n][3]);
              }
              if constexpr (DELTA)
                if (m < last_k) {
                  P::mma(P_k[2 * m], own[1], other[n][0], other[n][1]);
                  P::mma(P_k[2 * m + 1], own[1], other[n][2], other[n][3]);
                }
            }
          }
        use(own);
      });
    });
  }

  // strip += (features of own tokens in `own`) . (features of tokens in `other`), for the tiles first .. last - 1 of 16
  // tokens, and if SUMS, sum += own features. begin and use are called as in grams.
  template <int TOGETHER, bool SUMS, class F, class G>
  FWP_DEVICE void gram(Strip& strip, float (&sum)[4], const Element* own, const Element* other, int first, int last,
                       F begin, G use) {
    const Pair one = P::pair(1, 1);
    for_slabs([&](int slab) {
      for_features([&](auto rolled, int j, int i) {
        begin(slab, j, i);
        Pair x[1][4];
        own_features<rolled.value>(x, j, i, [&](int) { return own; });
        if (SUMS) P::mma(sum, x[0], one, one);
        FWP_UNROLL for (int at = 0; at < tiles; at += TOGETHER)
          if (at + TOGETHER > first && at < last) {
            Pair y[TOGETHER][4];
            load_features<B_down, rolled.value>(y, -j * ld,
                                                [&](int n) { return other + b_down + i * ld + 16 * (at + n); });
            FWP_UNROLL for (int n = 0; n < TOGETHER; ++n) {
              const int m = at + n;
              if (m < first || m >= last) continue;
              P::mma(strip[2 * m], x[0], y[n][0], y[n][1]);
              P::mma(strip[2 * m + 1], x[0], y[n][2], y[n][3]);
            }
          }
        use(x[0]);
      });
    });
  }
  FWP_DEVICE void add_gram(Strip& strip, const Element* own, const Element* other, int first, int last) {
    float unused[4] = {};
    gram<together, false>(strip, unused, own, other, first, last, [](int, int, int) {}, [](auto&) {});
  }

  // Sets the scales of own tokens; `sum` is the accumulator of their features times ones.
  FWP_DEVICE void finish_scale(bool keys, const float (&sum)[4]) {
    if (t == 0)
      FWP_UNROLL for (int r = 0; r < 2; ++r) {
        const int i = row + g + 8 * r;
        if (keys) s.scale_k[i] = scale_of(s.unit_k[i], sum[2 * r], key_there(i));
        else s.scale_q[i] = scale_of(s.unit_q[i], sum[2 * r], query_there(i));
      }
  }
  FWP_DEVICE void finish_scales(const float (&sum_q)[4], const float (&sum_k)[4]) {
    finish_scale(false, sum_q);
    finish_scale(true, sum_k);
  }

  // ---- values ----
  //
  // Without a state, columns of values are permuted in accumulators and in shared memory, so that the eight out of 32
  // that a lane has are neighbours in memory. column_of gives the tensor's column for column 8 n + x of a product.
  static FWP_DEVICE int column_of(int n, int x) {
    return states ? 8 * n + x : n / 4 * 32 + x / 2 * 8 + n % 4 * 2 + x % 2;
  }

  // Loads own rows of values, or of gradients, in the call's type; 0 where there is nothing.
  using Given = typename P::Eight[2][COLUMNS / 32];
  FWP_DEVICE void load_values(const Rows<const void>& rows, bool keys, int first, Given& x) const {
    FWP_UNROLL for (int r = 0; r < 2; ++r) {
      const int i = row + g + 8 * r, end = (keys ? key_there(i) : query_there(i)) ? c.d_value : 0;
      const Element* at = static_cast<const Element*>(rows.data) + offset(rows, unsigned(i));
      FWP_UNROLL for (int q = 0; q < COLUMNS / 32; ++q) {
        const int whole = first + column_of(4 * q, 2 * t);
        if (!states && rows.aligned) {
          x[r][q] = whole < end ? *reinterpret_cast<const typename P::Eight*>(at + whole) : typename P::Eight{};
        } else {
          FWP_UNROLL for (int m = 0; m < 4; ++m) {
            const int column = first + column_of(4 * q + m, 2 * t);
            if (rows.aligned) x[r][q].pair(m) = column < end ? load(at + column) : Pair{};
            else
              x[r][q].pair(m) =
                  P::joined(column < end ? at[column] : Element(0), column + 1 < end ? at[column + 1] : Element(0));
          }
        }
      }
    }
  }
  // Calls f(n, r, numbers 2 r and 2 r + 1 of accumulator n) for all that was loaded.
  template <class F> FWP_DEVICE void for_values(Given& x, F f) const {
    P::for_type(c.type, [&](auto type) {
      FWP_UNROLL for (int r = 0; r < 2; ++r)
        FWP_UNROLL for (int n = 0; n < value_tiles; ++n) f(n, r, P::template numbers<type.value>(x[r][n / 4].pair(n % 4)));
    });
  }
  FWP_DEVICE void load_values(const Rows<const void>& rows, bool keys, int first, Values& x) const {
    Given given;
    load_values(rows, keys, first, given);
    for_values(given, [&](int n, int r, Float2 y) {
      x[n][2 * r] = y.x;
      x[n][2 * r + 1] = y.y;
    });
  }
  FWP_DEVICE void store_values(const Rows<void>& rows, int tokens, int first, const Values& x) const {
    P::for_type(c.type, [&](auto type) {
      FWP_UNROLL for (int r = 0; r < 2; ++r) {
        const int i = row + g + 8 * r;
        Element* at = static_cast<Element*>(rows.data) + offset(rows, i);
        FWP_UNROLL for (int q = 0; q < COLUMNS / 32; ++q) {
          const int whole = first + column_of(4 * q, 2 * t);
          typename P::Eight y;
          FWP_UNROLL for (int m = 0; m < 4; ++m)
            y.pair(m) = P::template packed<type.value>({x[4 * q + m][2 * r], x[4 * q + m][2 * r + 1]});
          if (i >= tokens) continue;
          if (!states && rows.aligned) {
            if (whole < c.d_value) *reinterpret_cast<typename P::Eight*>(at + whole) = y;
          } else {
            FWP_UNROLL for (int m = 0; m < 4; ++m) {
              const int column = first + column_of(4 * q + m, 2 * t);
              if (rows.aligned && column < c.d_value) store(at + column, y.pair(m));
              if (!rows.aligned && column < c.d_value) at[column] = P::part(y.pair(m), 0);
              if (!rows.aligned && column + 1 < c.d_value) at[column + 1] = P::part(y.pair(m), 1);
            }
          }
        }
      }
    });
  }
  // Stores own rows in shared memory, in `to` [LT][stride] from column `first` on.
  FWP_DEVICE void share_values(float* to, int first, const Values& x) const {
    float* at = to + (row + g) * stride + first + 2 * t;
    FWP_UNROLL for (int n = 0; n < value_tiles; ++n)
      FWP_UNROLL for (int r = 0; r < 2; ++r)
        Single::store_pair(Type::float32, at + 8 * r * stride, 8 * n, {x[n][2 * r], x[n][2 * r + 1]});
  }

  // Tile m of a strip, 16 columns, as an A operand.
  static FWP_DEVICE void operand(Float2 (&a)[4], const Strip& strip, int m) {
    a[0] = {strip[2 * m][0], strip[2 * m][1]};
    a[1] = {strip[2 * m][2], strip[2 * m][3]};
    a[2] = {strip[2 * m + 1][0], strip[2 * m + 1][1]};
    a[3] = {strip[2 * m + 1][2], strip[2 * m + 1][3]};
  }
  // The same for a tile that the compiler does not know: what follows is compiled once, not once a tile.
  static FWP_DEVICE void operand_at(Float2 (&a)[4], const Strip& strip, int tile) {
    operand(a, strip, 0);
    FWP_UNROLL for (int m = 1; m < tiles; ++m)
      if (m == tile) operand(a, strip, m);
  }
  // x += a (16 x 16) times the rows 16 m .. 16 m + 15 of `from` [..][stride], in the columns from `first` on
  FWP_DEVICE void add_product(Values& x, const Float2 (&a)[4], const float* from, int m, int first) const {
    const float* at = from + (16 * m + 2 * t) * stride + first + g;
    FWP_UNROLL for (int n = 0; n < value_tiles; ++n)
      P::mma(x[n], a, Float2{at[8 * n], at[stride + 8 * n]}, Float2{at[8 * stride + 8 * n], at[9 * stride + 8 * n]});
  }
  // x += the strip's tiles first_tile .. last_tile - 1 times their rows of `from`
  FWP_DEVICE void add_read(Values& x, const Strip& strip, const float* from, int first_tile, int last_tile,
                           int first) const {
    FWP_UNROLL for (int m = 0; m < tiles; ++m)
      if (m >= first_tile && m < last_tile) {
        Float2 a[4];
        operand(a, strip, m);
        add_product(x, a, from, m, first);
      }
  }

  // Inverts a unit lower triangular 16 x 16 block, [16][17] in shared memory, in place, and sets what is right of the
  // diagonal to 0. With quarters of 8 x 8, the inverse of (L 0; B R) is (L^-1 0; -R^-1 B L^-1 R^-1).
  FWP_DEVICE void invert(float* block) const {
    constexpr int ld = 17;
    const int i = lane >> 2, j = 2 * (lane & 3);  // the place of this lane's two numbers in a quarter
    float *left = block, *below = block + 8 * ld, *above = block + 8, *right = below + 8;
    float x[8] = {};  // defined in all lanes: undefined numbers would keep registers from one call to the next
    float* own = lane < 8 ? left : right;  // each lane inverts one column of L or R
    if (lane < 16)
      FWP_UNROLL for (int r = 0; r < 8; ++r) {
        x[r] = r == (lane & 7) ? 1.f : 0.f;
        FWP_UNROLL for (int k = 0; k < r; ++k) x[r] -= own[r * ld + k] * x[k];
      }
    sync_warp();
    if (lane < 16)
      FWP_UNROLL for (int r = 0; r < 8; ++r) own[r * ld + (lane & 7)] = x[r];
    sync_warp();
    const auto product = [&](const float* y, const float* z) {
      Float2 sum{0, 0};
      FWP_UNROLL for (int k = 0; k < 8; ++k) {
        const float at = y[i * ld + k];
        sum.x += at * z[k * ld + j];
        sum.y += at * z[k * ld + j + 1];
      }
      return sum;
    };
    Float2 y = product(below, left);
    above[i * ld + j] = y.x, above[i * ld + j + 1] = y.y;
    sync_warp();
    y = product(right, above);
    sync_warp();
    below[i * ld + j] = -y.x, below[i * ld + j + 1] = -y.y;
    above[i * ld + j] = above[i * ld + j + 1] = 0;
    sync_warp();
  }
};

}  // namespace fwp::gpu
