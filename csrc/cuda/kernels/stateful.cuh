// Products with a state and its updates, for instances that have one; it lies in shared memory or in global memory.
#pragma once

#include "products.cuh"

namespace fwp::gpu {

template <class P, int LT, Kind K, int COLUMNS = value_block, int TEAMS = 1>
struct Stateful : Products<P, LT, K, COLUMNS, TEAMS> {
  using Base = Products<P, LT, K, COLUMNS, TEAMS>;
  using Base::a_across, Base::base_rows, Base::c, Base::clear, Base::feature_number, Base::g, Base::lane, Base::ld,
      Base::slabs, Base::state_row, Base::stride, Base::t, Base::value_tiles;
  using Base::Base;
  using typename Base::Element, typename Base::Pair, typename Base::Tile16, typename Base::Values;

  // Calls f(full). `full`: every base row is a feature and every column of a block of values exists, in aligned pairs,
  // so that f needs no bounds checks.
  template <class F> FWP_DEVICE void for_state(int columns, F f) const {
    const bool full = c.d_value % 2 == 0 && columns % COLUMNS == 0 && (c.nu ? c.d_key % 16 == 0 : c.d_dot == slabs * base_rows);
    if (full) f(std::true_type{});
    else f(std::false_type{});
  }

  // The state's rows of 16 features, those from base row i on, as the right operand of products with own tokens.
  struct Rows16 {
    Float2 W[value_tiles][2], z[2];  // W: columns from `first` on; z: as column 0
  };
  FWP_DEVICE void load_rows(Rows16& to, int slab, int j, int i, const Resident& from, int) const {
    const int row = state_row(slab, j, i) + 2 * t;
    const float *W = from.W + row * Resident::stride + g, *z = from.z + row;
    FWP_UNROLL for (int n = 0; n < value_tiles; ++n)
      FWP_UNROLL for (int e = 0; e < 2; ++e)
        to.W[n][e] = {W[8 * e * Resident::stride + 8 * n], W[(8 * e + 1) * Resident::stride + 8 * n]};
    FWP_UNROLL for (int e = 0; e < 2; ++e) to.z[e] = g == 0 ? Float2{z[8 * e], z[8 * e + 1]} : Float2{0, 0};
  }
  FWP_DEVICE void load_rows(Rows16& to, int slab, int j, int i, const Columns<const float>& from, int first) const {
    for_state(from.count, [&](auto full) {
      int f[4];
      bool there[4];
      const int number = full.value ? feature_number(slab, j, i) + 2 * t : 0;  // the other three follow from it
      FWP_UNROLL for (int e = 0; e < 4; ++e) {
        const int next = (e & 1) + 8 * (e >> 1);
        f[e] = full.value ? number + next : feature_number(slab, j, i + 2 * t + next);
        there[e] = full.value || f[e] >= 0;
      }
      const float* rows[4];
      FWP_UNROLL for (int e = 0; e < 4; ++e) rows[e] = from.W + int64_t(f[e]) * from.stride + first + g;
      FWP_UNROLL for (int n = 0; n < value_tiles; ++n) {
        float w[4];
        FWP_UNROLL for (int e = 0; e < 4; ++e)
          w[e] = full.value || (there[e] && first + 8 * n + g < from.count) ? rows[e][8 * n] : 0.f;
        to.W[n][0] = {w[0], w[1]};
        to.W[n][1] = {w[2], w[3]};
      }
      float w[4];
      FWP_UNROLL for (int e = 0; e < 4; ++e) w[e] = from.z && there[e] && g == 0 ? from.z[f[e]] : 0.f;
      to.z[0] = {w[0], w[1]};
      to.z[1] = {w[2], w[3]};
    });
  }
  // x += features . rows.W, and column 0 of xz += features . rows.z.
  FWP_DEVICE void add_rows(Values& x, float (&xz)[4], const Pair (&features)[4], const Rows16& rows, bool z) const {
    Float2 a[4];
    FWP_UNROLL for (int e = 0; e < 4; ++e) a[e] = P::values(features[e]);
    FWP_UNROLL for (int n = 0; n < value_tiles; ++n) P::mma_features(x[n], a, rows.W[n][0], rows.W[n][1]);
    if (z) P::mma_features(xz, a, rows.z[0], rows.z[1]);
  }
  // Column 0 of such an xz, for the tokens g and g + 8.
  FWP_DEVICE void first_column(float (&zx)[2], const float (&xz)[4]) const {
    zx[0] = shuffle(xz[0], lane & ~3);
    zx[1] = shuffle(xz[2], lane & ~3);
  }

  // With F_e the features of tile[e] of the tokens of `side`: x[e] += F_e^T diag(weights) from, and column 0 of
  // xz[e] += F_e^T weights_z.
  template <int N>
  FWP_DEVICE void add_outer(Values (&x)[N], float (&xz)[N][4], const Element* side, const Tile16 (&tile)[N],
                            const float* from, int first, const float* weights, const float* weights_z,
                            int token_tiles) const {
    FWP_ROLLED for (int m = 0; m < token_tiles; ++m) {
      Pair p[N][4];
      const auto rows = [&](int e) { return side + a_across + tile[e].i * ld + 16 * m; };
      if (c.nu) {
        Pair other[N][4];
        Base::template load_features<A_across, false>(p, 0, rows);
        Base::template load_features<A_across, false>(other, 0, [&](int e) { return rows(e) - tile[e].j * ld; });
        FWP_UNROLL for (int e = 0; e < N; ++e)
          FWP_UNROLL for (int i = 0; i < 4; ++i) p[e][i] = P::multiply(p[e][i], other[e][i]);
      } else {
        Base::template load_features<A_across, false>(p, 0, rows);
      }
      const int k = 16 * m + 2 * t;
      const float w[4] = {weights[k], weights[k + 1], weights[k + 8], weights[k + 9]};
      const float* at = from + k * stride + first + g;
      Float2 b[value_tiles][2];
      FWP_UNROLL for (int n = 0; n < value_tiles; ++n) {
        b[n][0] = {w[0] * at[8 * n], w[1] * at[stride + 8 * n]};
        b[n][1] = {w[2] * at[8 * stride + 8 * n], w[3] * at[9 * stride + 8 * n]};
      }
      FWP_UNROLL for (int e = 0; e < N; ++e) {
        Float2 a[4];
        FWP_UNROLL for (int i = 0; i < 4; ++i) a[i] = P::values(p[e][i]);
        FWP_UNROLL for (int n = 0; n < value_tiles; ++n) P::mma_features(x[e][n], a, b[n][0], b[n][1]);
        if (c.normalize_output) {
          const float one = g == 0 ? 1.f : 0.f;
          P::mma_features(xz[e], a, Float2{one * weights_z[k], one * weights_z[k + 1]},
                 Float2{one * weights_z[k + 8], one * weights_z[k + 9]});
        }
      }
    }
  }
  // Calls f(e, r, row, full), where `row` is the state's row for row g + 8 r of tile[e], or -1 if there is none.
  template <int N, class F> FWP_DEVICE void for_outer(int slab, const Tile16 (&tile)[N], int columns, F f) const {
    for_state(columns, [&](auto full) {
      FWP_UNROLL for (int e = 0; e < N; ++e) {
        const int start = full.value ? feature_number(slab, tile[e].j, tile[e].i) + g : 0;
        FWP_UNROLL for (int r = 0; r < 2; ++r)
          f(e, r, full.value ? start + 8 * r : feature_number(slab, tile[e].j, tile[e].i + g + 8 * r), full);
      }
    });
  }
  // clear_outer and load_outer set what add_outer adds to: zeros, or the state before.
  template <int N> FWP_DEVICE void clear_outer(Values (&x)[N], float (&xz)[N][4]) const {
    clear(xz);
    FWP_UNROLL for (int e = 0; e < N; ++e) clear(x[e]);
  }
  template <int N> FWP_DEVICE void scale_outer(Values (&x)[N], float (&xz)[N][4], float by) const {
    FWP_UNROLL for (int e = 0; e < N; ++e)
      FWP_UNROLL for (int i = 0; i < 4; ++i) {
        xz[e][i] *= by;
        FWP_UNROLL for (int n = 0; n < value_tiles; ++n) x[e][n][i] *= by;
      }
  }
  template <int N>
  FWP_DEVICE void load_outer(Values (&x)[N], float (&xz)[N][4], int slab, const Tile16 (&tile)[N], int,
                             const Resident& from) const {
    clear_outer(x, xz);
    if (!from.exists()) return;
    FWP_UNROLL for (int e = 0; e < N; ++e)
      FWP_UNROLL for (int r = 0; r < 2; ++r) {
        const int row = state_row(slab, tile[e].j, tile[e].i) + g + 8 * r;
        const float* at = from.W + row * Resident::stride + 2 * t;
        FWP_UNROLL for (int n = 0; n < value_tiles; ++n) {
          const Float2 w = Single::load_pair(Type::float32, at, 8 * n);
          x[e][n][2 * r] = w.x;
          x[e][n][2 * r + 1] = w.y;
        }
        if (t == 0) xz[e][2 * r] = from.z[row];
      }
  }
  template <int N>
  FWP_DEVICE void store_outer(const Values (&x)[N], const float (&xz)[N][4], int slab, const Tile16 (&tile)[N], int,
                              const Resident& to) const {
    FWP_UNROLL for (int e = 0; e < N; ++e)
      FWP_UNROLL for (int r = 0; r < 2; ++r) {
        const int row = state_row(slab, tile[e].j, tile[e].i) + g + 8 * r;
        float* at = to.W + row * Resident::stride + 2 * t;
        FWP_UNROLL for (int n = 0; n < value_tiles; ++n)
          Single::store_pair(Type::float32, at, 8 * n, {x[e][n][2 * r], x[e][n][2 * r + 1]});
        if (t == 0) to.z[row] = xz[e][2 * r];
      }
  }
  template <int N>
  FWP_DEVICE void load_outer(Values (&x)[N], float (&xz)[N][4], int slab, const Tile16 (&tile)[N], int first,
                             const Columns<const float>& from) const {
    clear_outer(x, xz);
    if (!from.W) return;
    for_outer(slab, tile, from.count, [&](int e, int r, int row, auto full) {
      const float* at = from.W + int64_t(row) * from.stride + first + 2 * t;
      FWP_UNROLL for (int n = 0; n < value_tiles; ++n) {
        const int column = first + 8 * n + 2 * t;
        Float2 w;
        if constexpr (full.value) w = Single::load_pair(Type::float32, at, 8 * n);
        else
          w = {row >= 0 && column < from.count ? at[8 * n] : 0.f,
               row >= 0 && column + 1 < from.count ? at[8 * n + 1] : 0.f};
        x[e][n][2 * r] = w.x;
        x[e][n][2 * r + 1] = w.y;
      }
      if (from.z && row >= 0 && t == 0) xz[e][2 * r] = from.z[row];
    });
  }
  // Stores what add_outer has summed. Every block of columns reads z, so only the last one stores it.
  template <int N>
  FWP_DEVICE void store_outer(const Values (&x)[N], const float (&xz)[N][4], int slab, const Tile16 (&tile)[N],
                              int first, const Columns<float>& to) const {
    const bool last = first + COLUMNS >= to.count;
    for_outer(slab, tile, to.count, [&](int e, int r, int row, auto full) {
      if (row < 0) return;
      float* at = to.W + int64_t(row) * to.stride + first + 2 * t;
      FWP_UNROLL for (int n = 0; n < value_tiles; ++n) {
        const int column = first + 8 * n + 2 * t;
        if constexpr (full.value) {
          Single::store_pair(Type::float32, at, 8 * n, {x[e][n][2 * r], x[e][n][2 * r + 1]});
        } else {
          if (column < to.count) at[8 * n] = x[e][n][2 * r];
          if (column + 1 < to.count) at[8 * n + 1] = x[e][n][2 * r + 1];
        }
      }
      if (to.z && last && t == 0) to.z[row] = xz[e][2 * r];
    });
  }
};

}  // namespace fwp::gpu
