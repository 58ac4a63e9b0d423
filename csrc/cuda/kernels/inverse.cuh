// The inverse T of a unit lower triangular matrix I + L of up to 64 rows. The delta rules need it because each row of U
// depends on earlier ones: U = (I + L)^-1 R. It is computed in float32 and without powers of L, which could be large
// although T is not.
#pragma once

#include "mma.cuh"

namespace fwp::gpu {

constexpr int square_ld = chunk + 4;
static_assert(sizeof(float) * square_ld <= 2 * sizeof(uint16_t) * tile_ld);  // so a tile has room for it

struct Inverse {
  float* const L;  // [rows of a tile][square_ld]; 0 above the diagonal, ignored on it. T replaces it.
  const int lane, warp;

  FWP_DEVICE float& at(int i, int j) const { return L[i * square_ld + j]; }

  // Run by all warps after a barrier; `rows` is a multiple of 16. Ends with a barrier.
  FWP_DEVICE void run(int rows) const {
    if (16 * warp < rows) invert_block(16 * warp);
    sync_block();
    // For blocks of 16 x 16: T_ij = -T_ii sum over j <= k < i of L_ik T_kj; warp j computes column j.
    FWP_ROLLED (int i = 16; i < rows; i += 16) {
      const int j = 16 * warp;
      float x[8] = {};
      if (j < i)
        FWP_ROLLED (int k = j; k < i; ++k) add(x, i, k, j);
      sync_block();  // nobody reads L_ij any more
      if (j >= i) continue;
      each(i, j, x, [&](float& to, float y) { to = y; });
      sync_warp();
      FWP_UNROLL (int n = 0; n < 8; ++n) x[n] = 0;
      FWP_ROLLED (int k = i; k < i + 16; ++k) add(x, i, k, j);
      sync_warp();
      each(i, j, x, [&](float& to, float y) { to = -y; });
      sync_warp();
    }
    sync_block();
  }

 private:
  // Each lane has a column and 8 rows of a block.
  template <class F> FWP_DEVICE void each(int i, int j, float (&x)[8], F f) const {
    FWP_UNROLL (int n = 0; n < 8; ++n) f(at(i + lane / 16 * 8 + n, j + lane % 16), x[n]);
  }
  // x += column k of the block's rows times row k.
  FWP_DEVICE void add(float (&x)[8], int i, int k, int j) const {
    const float y = at(k, j + lane % 16);
    FWP_UNROLL (int n = 0; n < 8; ++n) x[n] += at(i + lane / 16 * 8 + n, k) * y;
  }
  // Inverts a block on the diagonal, and sets its diagonal to 1 and the numbers above to 0.
  FWP_DEVICE void invert_block(int first) const {
    float x[16];
    const int j = lane % 16;
    FWP_UNROLL (int i = 0; i < 16; ++i) {
      x[i] = i == j ? 1.f : 0.f;
      FWP_UNROLL (int k = 0; k < i; ++k) x[i] -= at(first + i, first + k) * x[k];
    }
    sync_warp();
    if (lane < 16)
      FWP_UNROLL (int i = 0; i < 16; ++i) at(first + i, first + j) = x[i];
  }
};

}  // namespace fwp::gpu
