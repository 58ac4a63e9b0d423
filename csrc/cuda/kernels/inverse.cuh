// The inverse T of the delta rule's unit triangular system of a segment, which is made before any state is known where outputs
// are not normalised (keys_kernel), and products with it, by two teams of warps: of the right side each team brings a part of
// the sum, of the product it makes half of the columns.
#pragma once

#include "decay.cuh"

namespace fwp::gpu {

template <class Under, class Precision, int LT, int TEAMS> struct Inverse : Under {
  using Base = Under;
  using Base::Base;
  using Base::c, Base::clear, Base::g, Base::here, Base::row, Base::s, Base::stride, Base::t, Base::team, Base::tiles,
      Base::value_tiles;
  using typename Base::Values;
  using Operands = Float2[tiles][4];  // own rows of T or of its transpose
  static constexpr int half_tiles = value_tiles / TEAMS;
  using HalfValues = float[half_tiles ? half_tiles : 1][4];  // own rows, in the team's columns

  // [LT][LT]. Rows of tiles without keys are not there, nor is what lies right of the tiles on the diagonal.
  FWP_DEVICE float* noted_inverse() const { return c.inverses + Base::number(c, here, true) * (LT * LT); }

  // Loads the tiles first .. last - 1.
  template <bool TRANSPOSED> FWP_DEVICE void load_inverse(Operands& T, int first, int last) const {
    const float* from = noted_inverse() + (TRANSPOSED ? 2 * t * LT + row + g : (row + g) * LT + 2 * t);
    FWP_UNROLL for (int m = 0; m < tiles; ++m)
      FWP_UNROLL for (int i = 0; i < 4; ++i) {
        const int far = 16 * m + 8 * (i >> 1), near = 8 * (i & 1);
        if (m < first || m >= last) T[m][i] = {0, 0};
        else if (TRANSPOSED) T[m][i] = {from[far * LT + near], from[(far + 1) * LT + near]};
        else T[m][i] = Single::load_pair(Type::float32, from + near * LT, far);
      }
  }
  // Stores the team's part of own rows of the right side where inputs were on their way. A barrier of both teams follows.
  FWP_DEVICE void share_part(const Values& x) const { Base::share_values(parts() + team * LT * stride, 0, x); }
  // Own rows of the product with the tiles first .. last - 1, in the team's columns, stored in s.E too.
  FWP_DEVICE void multiply(HalfValues& y, const Operands& T, int first, int last) const {
    const int column = 8 * half_tiles * team, other = LT * stride;
    clear(y);
    FWP_UNROLL for (int m = 0; m < tiles; ++m) {
      if (m < first || m >= last) continue;
      const float* at = parts() + (16 * m + 2 * t) * stride + column + g;
      const auto sum = [&](int i) { return at[i] + at[other + i]; };
      FWP_UNROLL for (int n = 0; n < half_tiles; ++n)
        Precision::mma(y[n], T[m], Float2{sum(8 * n), sum(stride + 8 * n)},
                         Float2{sum(8 * stride + 8 * n), sum(9 * stride + 8 * n)});
    }
    for_pairs(y, [&](int r, int at, Float2 pair) {
      Single::store_pair(Type::float32, s.E + (row + g + 8 * r) * stride + 2 * t, at, pair);
    });
  }
  // Calls f(r, column, pair) for every two neighbours, those of row g + 8 r from `column` + 2 t on.
  template <class F> FWP_DEVICE void for_pairs(const HalfValues& y, F f) const {
    FWP_UNROLL for (int n = 0; n < half_tiles; ++n)
      FWP_UNROLL for (int r = 0; r < 2; ++r) f(r, 8 * (half_tiles * team + n), Float2{y[n][2 * r], y[n][2 * r + 1]});
  }

 private:
  FWP_DEVICE float* parts() const {
    static_assert(Base::raw_ld * int(sizeof(typename Base::Element)) >= 4 * (slice_columns + 4));
    return reinterpret_cast<float*>(s.raw);
  }
};

}  // namespace fwp::gpu
