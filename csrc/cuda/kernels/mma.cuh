// Matrix products of 64 x 64 numbers or less by a block of up to four warps, each of which computes 16 rows.
//
// An operand is a tile in shared memory: every number as a pair of bfloat16 (call.h), in two planes. A product of pairs
// is three of bfloat16 (what is left out is 2^-16 of it), which tensor cores sum over 16 numbers. They round sums
// towards zero, so a long sum made by them would drift: additions to `sum` are ordinary ones.
#pragma once

#include "call.h"
#include "device.cuh"

namespace fwp::gpu {

constexpr int most_threads = 128;  // of a block: a warp for every 16 tokens
constexpr int tile_ld = chunk + 8;  // rows begin 16 bytes apart modulo 128: no bank conflicts
using Tile = uint16_t*;  // in shared memory

struct alignas(8) Float2 {
  float x, y;
};
// Own 16 rows of a matrix of 8 N columns: sum[n][0], [1] are row g, columns 8 n + 2 t and + 1; [2], [3] are row g + 8.
template <int N> using Strip = float[N][4];

FWP_DEVICE uint32_t high_pair(Float2 x) { return pack_bfloat16s(x.x, x.y); }
FWP_DEVICE Float2 both(uint32_t pair) { return {float_of(pair << 16), float_of(pair & 0xffff0000u)}; }
FWP_DEVICE uint32_t low_pair(Float2 x, uint32_t high) { return pack_bfloat16s(x.x - both(high).x, x.y - both(high).y); }

// A matrix in global memory, from its first number on. Columns that are asked for in pairs are even.
struct Matrix {
  Pairs at;
  int ld;

  FWP_DEVICE Matrix from(int row, int column) const {
    const int64_t i = int64_t(row) * ld + column;
    return {{at.high + i, at.low + i}, ld};
  }
  FWP_DEVICE Float2 operator()(int row, int column) const {
    const int64_t i = int64_t(row) * ld + column;
    const Float2 x = both(word(at.high + i)), y = both(word(at.low + i));
    return {x.x + y.x, x.y + y.y};
  }
  FWP_DEVICE void put(int row, int column, Float2 x) const {
    const int64_t i = int64_t(row) * ld + column;
    const uint32_t high = high_pair(x);
    word(at.high + i) = high;
    word(at.low + i) = low_pair(x, high);
  }
  static FWP_DEVICE uint32_t& word(uint16_t* x) { return *reinterpret_cast<uint32_t*>(x); }
};

struct Products {
  const int threads, plane;  // of the block; numbers in a plane of a tile
  const int thread, lane, warp, g, t, row;  // row: the first of the own 16

  // Tiles have so many rows.
  FWP_DEVICE explicit Products(int rows)
      : threads(2 * rows), plane(rows * tile_ld), thread(thread_index()), lane(thread % 32), warp(warp_index()),
        g(lane / 4), t(lane % 4), row(16 * warp) {}

  // Starts to copy rows x columns numbers, whole 16s; `arrived` waits for all copies of the block.
  FWP_DEVICE void stage(Tile to, const Matrix& from, int rows, int columns) const {
    const int across = columns > 32 ? 8 : columns > 16 ? 4 : 2, column = thread % across * 8;
    if (column >= columns) return;
    FWP_ROLLED (int r = thread / across; r < rows; r += threads / across) {
      const int64_t i = int64_t(r) * from.ld + column;
      start_copy(to + r * tile_ld + column, from.at.high + i);
      start_copy(to + plane + r * tile_ld + column, from.at.low + i);
    }
  }
  static FWP_DEVICE void arrived() {
    copies_arrived();
    sync_block();
  }

  // Calls start(i), which starts copies, and then use(i) for so many i, and makes copies for the next i while it uses
  // what has arrived: start(i) and start(i + 1) write to different places. Leaves shared memory free.
  template <class Start, class Use> static FWP_DEVICE void each_staged(int count, Start start, Use use) {
    if (count > 0) start(0);
    FWP_ROLLED (int i = 0; i < count; ++i) {
      arrived();
      if (i + 1 < count) start(i + 1);
      use(i);
    }
    sync_block();
  }

  // Calls f(row, column, x, y) for every two neighbours in the own rows.
  template <int N, class F> FWP_DEVICE void each(Strip<N>& x, int columns, F f) const {
    FWP_UNROLL (int n = 0; n < N; ++n)
      if (8 * n < columns)
        FWP_UNROLL (int r = 0; r < 2; ++r) f(row + g + 8 * r, 8 * n + 2 * t, x[n][2 * r], x[n][2 * r + 1]);
  }
  template <int N> static FWP_DEVICE void clear(Strip<N>& x) {
    FWP_UNROLL (int n = 0; n < N; ++n)
      FWP_UNROLL (int i = 0; i < 4; ++i) x[n][i] = 0;
  }
  // Stores own rows in a tile or a matrix.
  template <int N> FWP_DEVICE void put(Tile to, Strip<N>& x, int columns) const {
    each(x, columns, [&](int r, int column, float a, float b) {
      uint16_t* const at = to + r * tile_ld + column;
      const uint32_t high = high_pair({a, b});
      Matrix::word(at) = high;
      Matrix::word(at + plane) = low_pair({a, b}, high);
    });
  }
  template <int N> FWP_DEVICE void put(const Matrix& to, Strip<N>& x, int columns) const {
    each(x, columns, [&](int r, int column, float a, float b) { to.put(r, column, {a, b}); });
  }
  // The sum of f(x, y) over each of the own rows g and g + 8, for all lanes that have the row.
  template <int N, class F> FWP_DEVICE void row_sums(float (&sums)[2], Strip<N>& x, int columns, F f) const {
    FWP_UNROLL (int r = 0; r < 2; ++r) {
      float own = 0;
      FWP_UNROLL (int n = 0; n < N; ++n)
        if (8 * n < columns) own += f(row + g + 8 * r, 8 * n + 2 * t, x[n][2 * r], x[n][2 * r + 1]);
      FWP_UNROLL (int mask = 1; mask < 4; mask *= 2) own += shuffle_xor(own, mask);
      sums[r] += own;
    }
  }
  // That of two numbers which belongs to an own row: the array stays in registers.
  FWP_DEVICE float of_row(const float (&x)[2], int r) const { return r == row + g ? x[0] : x[1]; }

  // Own rows of sum += A B over `inner` numbers, in `columns` columns. A is stored as it is, or turned: with its
  // columns as rows. So is B.
  template <bool A_TURNED, bool B_TURNED, int N>
  FWP_DEVICE void multiply(Strip<N>& sum, const uint16_t* a, const uint16_t* b, int inner, int columns) const {
    const int r = lane % 8, second = 8 * (lane / 8 % 2), third = 8 * (lane / 16);
    FWP_ROLLED (int k = 0; k < inner; k += 16) {
      uint32_t A[2][4];
      FWP_UNROLL (int part = 0; part < 2; ++part) {
        const uint16_t* const from = a + part * plane;
        if (A_TURNED) load_matrices_transposed(A[part], from + (k + third + r) * tile_ld + row + second);
        else load_matrices(A[part], from + (row + second + r) * tile_ld + k + third);
      }
      FWP_UNROLL (int n = 0; n < N / 2; ++n) {
        if (16 * n >= columns) continue;
        uint32_t B[2][4];
        FWP_UNROLL (int part = 0; part < 2; ++part) {
          const uint16_t* const from = b + part * plane;
          if (B_TURNED) load_matrices(B[part], from + (16 * n + third + r) * tile_ld + k + second);
          else load_matrices_transposed(B[part], from + (k + second + r) * tile_ld + 16 * n + third);
        }
        FWP_UNROLL (int h = 0; h < 2; ++h) {
          float c[4] = {};
          mma_bfloat16(c, A[1], B[0][2 * h], B[0][2 * h + 1]);
          mma_bfloat16(c, A[0], B[1][2 * h], B[1][2 * h + 1]);
          mma_bfloat16(c, A[0], B[0][2 * h], B[0][2 * h + 1]);
          FWP_UNROLL (int i = 0; i < 4; ++i) sum[2 * n + h][i] += c[i];
        }
      }
    }
  }
};

}  // namespace fwp::gpu
