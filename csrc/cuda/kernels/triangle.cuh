// The transposed or plain unit triangular system of a segment's keys, tile by tile with inverted diagonal blocks.
#pragma once

#include "stateful.cuh"

namespace fwp::gpu {

template <class Base> struct Triangle : Base {
  using Base::Base;
  using Base::g, Base::row, Base::s, Base::t;
  using typename Base::Values;

  // Stores the inverse of the own diagonal block in shared memory; in reverse order, that of the transposed system.
  template <class KeyStrip> FWP_DEVICE void share_block(const KeyStrip& B, float* squares, bool reverse) const {
    float* block = squares + row / 16 * 16 * 17;
    Base::for_strip([&](int n, int i, int j) {
      const int k = Base::row_of(i) - row, l = j - row;
      if (l < 0 || l >= 16) return;
      if (reverse) block[(15 - k) * 17 + 15 - l] = -B[n][i];
      else block[k * 17 + l] = -B[n][i];
    });
    sync_warp();
    Base::invert(block);
  }

  // Own rows of `to`, in the columns from `first` on, = the inverted diagonal block times x.
  FWP_DEVICE void solve_block(Values& x, float* to, int first, bool reverse) const {
    const int w = row / 16;
    const float* block = s.square + w * 16 * 17;
    Base::share_values(to, first, x);
    sync_warp();
    Float2 a[4];
    FWP_UNROLL for (int i = 0; i < 4; ++i) {
      const int k = g + 8 * (i & 1), l = 2 * t + 8 * (i >> 1);
      if (reverse) a[i] = {block[(15 - k) * 17 + 15 - l], block[(15 - k) * 17 + 14 - l]};
      else a[i] = {block[k * 17 + l], block[k * 17 + l + 1]};
    }
    Base::clear(x);
    Base::add_product(x, a, to, w, first);
    sync_warp();
    Base::share_values(to, first, x);
  }
};

}  // namespace fwp::gpu
