// Operands of the products of short sentences: halves, which have 11 bits, in tiles of shared memory. Numbers of any
// size are brought into their range by a power of two for each row or tile, and products are multiplied by its inverse.
#pragma once

#include "device.cuh"
#include "mma.cuh"

namespace fwp::gpu {

// The power of two that brings numbers of at most this magnitude below 2^to.
FWP_DEVICE float power_for(float most, int to) {
  int e = int(bits_of(most) >> 23) - 127;
  e = most == 0 ? 0 : e < -60 ? -60 : e > 100 ? 100 : e;
  return float_of(uint32_t(127 + to - 1 - e) << 23);
}

// The differences between two numbers and the halves nearest to them.
FWP_DEVICE uint32_t rest_of(float a, float b, uint32_t high) {
  return pack_halves(a - first_half(high), b - second_half(high));
}
// Packs two strips of 8 columns of the warp's rows as the left operand of a product over their 16 columns; pack_rest
// packs what was rounded off.
FWP_DEVICE void pack_operand(uint32_t (&A)[4], const float (&x)[4], const float (&y)[4]) {
  A[0] = pack_halves(x[0], x[1]), A[1] = pack_halves(x[2], x[3]);
  A[2] = pack_halves(y[0], y[1]), A[3] = pack_halves(y[2], y[3]);
}
FWP_DEVICE void pack_rest(uint32_t (&A)[4], const uint32_t (&high)[4], const float (&x)[4], const float (&y)[4]) {
  A[0] = rest_of(x[0], x[1], high[0]), A[1] = rest_of(x[2], x[3], high[1]);
  A[2] = rest_of(y[0], y[1], high[2]), A[3] = rest_of(y[2], y[3], high[3]);
}

// The addresses that the lanes of a warp pass to load_matrices. The warp's own rows are the 16 from `row` on.
struct Fragments {
  const int thread, lane, warp, g, t, row, near, far, r8;
  const int in_tile;  // of the address of this lane in 16 x 16 numbers of a tile

  FWP_DEVICE Fragments()
      : thread(thread_index()), lane(thread & 31), warp(warp_index()), g(lane >> 2), t(lane & 3), row(16 * warp),
        near(lane & 8), far(lane >> 1 & 8), r8(lane & 7), in_tile(kept((near + r8) * tile_ld + far)) {}

  // Loads a left operand, 16 rows from r on and 16 columns from k on, of a matrix or of one that is stored transposed.
  FWP_DEVICE void left(uint32_t (&A)[4], const uint16_t* a, int ld, int r, int k) const {
    load_matrices(A, a + (r + near + r8) * ld + k + far);
  }
  FWP_DEVICE void left_transposed(uint32_t (&A)[4], const uint16_t* a, int ld, int r, int k) const {
    load_matrices_transposed(A, a + (k + far + r8) * ld + r + near);
  }
  // Loads a right operand, 16 rows from k on and 16 columns from n on, of a matrix or of one that is stored transposed.
  FWP_DEVICE void right(uint32_t (&B)[4], const uint16_t* b, int ld, int k, int n) const {
    load_matrices_transposed(B, b + (k + near + r8) * ld + n + far);
  }
  FWP_DEVICE void right_transposed(uint32_t (&B)[4], const uint16_t* b, int ld, int k, int n) const {
    load_matrices(B, b + (n + far + r8) * ld + k + near);
  }
  // sum += A B for 16 columns, those of strips n and n + 1
  template <int N> FWP_DEVICE void add(Strip<N>& sum, int n, const uint32_t (&A)[4], const uint32_t (&B)[4]) const {
    mma_half(sum[n], A, B[0], B[1]);
    mma_half(sum[n + 1], A, B[2], B[3]);
  }
  // sum += A B, where A has 16 columns and B has 64 columns and the rows from k on
  FWP_DEVICE void add_row(Strip<8>& sum, const uint32_t (&A)[4], const uint16_t* b, int k) const {
    FWP_UNROLL (int n = 0; n < 4; ++n) {
      uint32_t B[4];
      load_matrices_transposed(B, b + (k * tile_ld + in_tile) + 16 * n);
      add(sum, 2 * n, A, B);
    }
  }
  // For the warp's rows: sum += A B over the tiles of A up to `last`, and sum += A^T B over the tiles first .. end - 1;
  // at least one tile each.
  FWP_DEVICE void add_rows(Strip<8>& sum, const uint16_t* a, int ld, int last, const uint16_t* b) const {
    FWP_ROLLED (int m = 0;;) {
      uint32_t A[4];
      left(A, a, ld, row, 16 * m);
      add_row(sum, A, b, 16 * m);
      if (++m > last) break;
    }
  }
  FWP_DEVICE void add_transposed(Strip<8>& sum, const uint16_t* a, int ld, int first, int end,
                                 const uint16_t* b) const {
    const int of_lane = kept((far + r8) * ld + row + near);
    FWP_ROLLED (int m = first;;) {
      uint32_t A[4];
      load_matrices_transposed(A, a + (16 * m * ld + of_lane));
      add_row(sum, A, b, 16 * m);
      if (++m >= end) break;
    }
  }
  // Stores the warp's rows in a tile.
  template <int N> FWP_DEVICE void put(uint16_t* to, int ld, const Strip<N>& x) const {
    FWP_UNROLL (int n = 0; n < N; ++n)
      FWP_UNROLL (int r = 0; r < 2; ++r)
        *reinterpret_cast<uint32_t*>(to + (row + g + 8 * r) * ld + 8 * n + 2 * t) =
            pack_halves(x[n][2 * r], x[n][2 * r + 1]);
  }
};
template <class F> FWP_DEVICE void of_four(float (&x)[2], F f) {  // reduces over the four lanes that share a row
  FWP_UNROLL (int r = 0; r < 2; ++r)
    FWP_UNROLL (int mask = 1; mask < 4; mask *= 2) x[r] = f(x[r], shuffle_xor(x[r], mask));
}
FWP_DEVICE void sum_of_four(float (&x)[2]) {
  of_four(x, [](float a, float b) { return a + b; });
}

}  // namespace fwp::gpu
