// Matrix products of 64 x 64 numbers or less by a block of up to four warps, each of which computes 16 rows.
//
// An operand is a tile of halves in shared memory. Each block of 16 x 16 numbers has a power of two, which brings them
// into the range of halves (call.h); most blocks share that of their neighbours. Tensor cores add products up in
// float32, in units of the product of both operands' powers; where a power changes within a sum, the sum is first
// converted to the new unit.
#pragma once

#include "call.h"
#include "device.cuh"

namespace fwp::gpu {

constexpr int most_threads = 128;  // of a block: a warp for every 16 tokens
constexpr int tile_ld = chunk + 8;  // rows begin 16 bytes apart modulo 128: no bank conflicts
constexpr int powers_ld = chunk / 16;  // powers of a tile are powers_ld x powers_ld
struct Tile {  // in shared memory
  uint16_t* at;
  float* powers;
};

struct alignas(8) Float2 {
  float x, y;
};
// Own 16 rows of a matrix of 8 N columns: sum[n][0], [1] are row g, columns 8 n + 2 t and + 1; [2], [3] are row g + 8.
template <int N> using Strip = float[N][4];
template <int N> using Units = float[N / 2];  // the units of a sum, one for each 16 columns

template <int N> FWP_DEVICE void clear(Strip<N>& x) {
  FWP_UNROLL (int n = 0; n < N; ++n)
    FWP_UNROLL (int i = 0; i < 4; ++i) x[n][i] = 0;
}
FWP_DEVICE uint32_t& word(uint16_t* x) { return *reinterpret_cast<uint32_t*>(x); }
FWP_DEVICE float undone(float power) { return float_of((254u << 23) - bits_of(power)); }  // of a power of two
// The power of two by which the halves of a block have to be multiplied to get its numbers, whose largest magnitude is
// `most`. Products of two such powers are floats.
FWP_DEVICE float power_of_block(float most, int largest = 15, int least_exponent = -40, int most_exponent = 60) {
  int e = int(bits_of(most) >> 23) - 126;
  e = most == 0 ? 0 : e < least_exponent ? least_exponent : e > most_exponent ? most_exponent : e;
  return float_of(uint32_t(127 + e - largest) << 23);
}

// A matrix in global memory. The arguments of `from` are multiples of 16.
struct Matrix {
  Halves at;
  int ld;

  FWP_DEVICE int64_t block(int row, int column) const { return int64_t(row / 16) * (ld / 16) + column / 16; }
  FWP_DEVICE uint16_t* number(int row, int column) const { return at.numbers + int64_t(row) * ld + column; }
  FWP_DEVICE Matrix from(int row, int column) const {
    return {{number(row, column), at.powers + block(row, column)}, ld};
  }
  FWP_DEVICE Float2 operator()(int row, int column) const {  // and the next number; column is even
    const uint32_t x = word(number(row, column));
    const float power = at.powers[block(row, column)];
    return {power * first_half(x), power * second_half(x)};
  }
};

struct Products {
  const int threads, tile_numbers;  // of the block; of a tile
  const int thread, lane, warp, g, t, row;  // row: the first of the own 16

  // `rows`: the number of rows of a tile.
  FWP_DEVICE explicit Products(int rows)
      : threads(2 * rows), tile_numbers(rows * tile_ld), thread(thread_index()), lane(thread % 32), warp(warp_index()),
        g(lane / 4), t(lane % 4), row(16 * warp) {}

  // Starts to copy rows x columns numbers, both multiples of 16; `arrived` waits for all copies of the block.
  FWP_DEVICE void stage(Tile to, const Matrix& from, int rows, int columns) const {
    const int across = columns > 32 ? 8 : columns > 16 ? 4 : 2, column = thread % across * 8;
    const int r = thread / powers_ld, n = thread % powers_ld;
    if (16 * r < rows && 16 * n < columns)
      start_copy_of_word(to.powers + thread, from.at.powers + from.block(16 * r, 16 * n));
    if (column >= columns) return;
    FWP_ROLLED (int r = thread / across; r < rows; r += threads / across)
      start_copy(to.at + r * tile_ld + column, from.number(r, column));
  }
  // The first or second of two consecutive tiles, for even or odd i.
  FWP_DEVICE Tile turn(const Tile& x, int i) const {
    return {x.at + i % 2 * tile_numbers, x.powers + i % 2 * powers_ld * powers_ld};
  }
  static FWP_DEVICE void arrived() {
    copies_arrived();
    sync_block();
  }

  // Calls start(i), which starts copies, and then use(i), for all i < count. Copies for i + 1 run during use(i), so
  // start(i) and start(i + 1) must write to different places. Leaves shared memory free.
  template <class Start, class Use> static FWP_DEVICE void each_staged(int count, Start start, Use use) {
    FWP_ROLLED (int i = 0; i <= count; ++i) {  // so that the code of start and use is there once
      if (i > 0) arrived();
      if (i < count) start(i);
      if (i > 0) use(i - 1);
    }
    sync_block();
  }

  // Calls f(row, column, x, y) for every two neighbours in the warp's rows.
  template <int N, class F> FWP_DEVICE void each(Strip<N>& x, int columns, F f) const {
    FWP_UNROLL (int n = 0; n < N; ++n)
      if (8 * n < columns)
        FWP_UNROLL (int r = 0; r < 2; ++r) f(row + g + 8 * r, 8 * n + 2 * t, x[n][2 * r], x[n][2 * r + 1]);
  }
  // Stores the warp's rows in a tile or a matrix, with one power.
  template <int N> FWP_DEVICE void put(const Tile& to, Strip<N>& x, int columns) const {
    put(x, columns, to.powers + powers_ld * warp, to.at + (row + g) * tile_ld + 2 * t, tile_ld);
  }
  template <int N> FWP_DEVICE void put(const Matrix& to, Strip<N>& x, int columns) const {
    put(x, columns, to.at.powers + to.block(row, 0), to.number(row + g, 2 * t), to.ld);
  }
  template <int N>
  FWP_DEVICE void put(Strip<N>& x, int columns, float* powers, uint16_t* first, int ld) const {
    const float power = power_of(x, columns), by = undone(power);
    if (16 * lane < columns) powers[lane] = power;
    uint16_t* const second = first + 8 * ld;
    FWP_UNROLL (int n = 0; n < N; ++n)
      if (8 * n < columns) {
        word(first + 8 * n) = pack_halves(x[n][0] * by, x[n][1] * by);
        word(second + 8 * n) = pack_halves(x[n][2] * by, x[n][3] * by);
      }
  }
  // Stores the warp's rows in a matrix of floats, or adds them to it.
  template <int N> FWP_DEVICE void put(float* to, int ld, Strip<N>& x, int columns, bool added) const {
    FWP_UNROLL (int n = 0; n < N; n += 4) {  // a few loads at a time, because loads are not moved before stores
      Strip<4>& some = *reinterpret_cast<Strip<4>*>(x + n);
      const auto at = [&](int r, int j) -> Float2& { return *reinterpret_cast<Float2*>(to + r * ld + 8 * n + j); };
      if (added)
        each(some, columns - 8 * n, [&](int r, int j, float& a, float& b) {
          const Float2 before = at(r, j);
          a += before.x, b += before.y;
        });
      each(some, columns - 8 * n, [&](int r, int j, float a, float b) { at(r, j) = {a, b}; });
    }
  }
  template <int N> FWP_DEVICE float power_of(Strip<N>& x, int columns) const {
    float most = 0;
    each(x, columns, [&](int, int, float a, float b) { most = larger(most, larger(absolute(a), absolute(b))); });
    return power_of_block(largest_of_warp(most));
  }
  // Own rows as they will be stored.
  template <int N> FWP_DEVICE void round(Strip<N>& x, int columns) const {
    const float power = power_of(x, columns), by = undone(power);
    each(x, columns, [&](int, int, float& a, float& b) {
      const uint32_t y = pack_halves(a * by, b * by);
      a = power * first_half(y), b = power * second_half(y);
    });
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

  // Sums begin and end as they are. Between, a strip is counted in units.
  template <int N> static FWP_DEVICE void begin(Units<N>& units) {
    FWP_UNROLL (int n = 0; n < N / 2; ++n) units[n] = 1;
  }
  template <int N> static FWP_DEVICE void scale(Strip<N>& sum, int n, float by) {
    FWP_UNROLL (int i = 0; i < 4; ++i) sum[2 * n][i] *= by, sum[2 * n + 1][i] *= by;
  }
  template <int N> static FWP_DEVICE void end(Strip<N>& sum, const Units<N>& units, int columns) {
    FWP_UNROLL (int n = 0; n < N / 2; ++n)
      if (16 * n < columns) scale(sum, n, units[n]);
  }
  // Own rows of sum += A B over `inner` numbers, in `columns` columns. A is stored as it is, or transposed: with its
  // columns as rows. So is B.
  template <bool A_TRANSPOSED, bool B_TRANSPOSED, int N> FWP_DEVICE void multiply(Strip<N>& sum, float (&units)[N / 2],
                                                                                  const Tile& a, const Tile& b,
                                                                                  int inner, int columns) const {
    const int r = lane % 8, second = 8 * (lane / 8 % 2), third = 8 * (lane / 16);
    FWP_ROLLED (int k = 0; k < inner; k += 16) {
      uint32_t A[4];
      if (A_TRANSPOSED) load_matrices_transposed(A, a.at + (k + third + r) * tile_ld + row + second);
      else load_matrices(A, a.at + (row + second + r) * tile_ld + k + third);
      const float power = a.powers[A_TRANSPOSED ? k / 16 * powers_ld + warp : powers_ld * warp + k / 16];
      FWP_UNROLL (int n = 0; n < N / 2; ++n) {
        if (16 * n >= columns) continue;
        uint32_t B[4];
        if (B_TRANSPOSED) load_matrices(B, b.at + (16 * n + third + r) * tile_ld + k + second);
        else load_matrices_transposed(B, b.at + (k + second + r) * tile_ld + 16 * n + third);
        const float unit = power * b.powers[B_TRANSPOSED ? n * powers_ld + k / 16 : k / 16 * powers_ld + n];
        if (unit != units[n]) {
          scale(sum, n, units[n] * undone(unit));
          units[n] = unit;
        }
        mma_half(sum[2 * n], A, B[0], B[1]);
        mma_half(sum[2 * n + 1], A, B[2], B[3]);
      }
    }
  }
  template <bool A_TRANSPOSED, bool B_TRANSPOSED, int N>
  FWP_DEVICE void multiply(Strip<N>& sum, const Tile& a, const Tile& b, int inner, int columns) const {
    Units<N> units;
    begin<N>(units);
    multiply<A_TRANSPOSED, B_TRANSPOSED>(sum, units, a, b, inner, columns);
    end<N>(sum, units, columns);
  }
};

}  // namespace fwp::gpu
