// The parts of the kernels of recurrences. A block of threads processes one head of a batch row, with its matrices in
// registers: each warp has 8 columns, and each lane N of their rows, i = lane, lane + 32, .. Sums over a column stay
// within a warp. Warps exchange data only when a vector over columns becomes a vector over rows: when the output is fed
// back, and in the backward pass, where sums over columns involve all warps.
//
// Every warp has all numbers of a vector over rows, x[N]. Of a vector over columns, each lane has the number of its
// column, 8 warp + lane % 8. Numbers beyond d are 0.
#pragma once

#include "../device.cuh"
#include "recurrence_launch.h"

namespace fwp::gpu {

constexpr int warp_columns = 8;

FWP_DEVICE float sigmoid(float x) { return 1 / (1 + exponential(-x)); }

FWP_BOTH int recurrent_warps(const RecurrenceCall& c) { return (int(c.d) + warp_columns - 1) / warp_columns; }
// The largest number of threads of a block with N rows per lane.
template <int N> constexpr int recurrent_threads = 32 * (32 * N / warp_columns);

template <int N> struct RecurrentBlock {
  static constexpr int rows = 32 * N;  // and as many columns at most
  typedef float Matrix[N][warp_columns];

  const RecurrenceCall& c;
  const int lane, warp, warps, d, column, head;
  const int64_t b, matrix;  // matrix: the offset of this head's matrices

  FWP_DEVICE explicit RecurrentBlock(const RecurrenceCall& call)
      : RecurrentBlock(call, warp_index(), recurrent_warps(call)) {}
  // For warp number `warp` of a block with `warps` warps; it has the columns from 8 warp on.
  FWP_DEVICE RecurrentBlock(const RecurrenceCall& call, int warp, int warps)
      : c(call), lane(thread_index() % 32), warp(warp), warps(warps), d(int(call.d)),
        column(warp_columns * warp + lane % warp_columns), head(block_index() % int(call.heads)),
        b(block_index() / int(call.heads)), matrix(int64_t(block_index()) * d * d) {}

  template <class V> FWP_DEVICE V* at(const Rows<V>& x, int64_t t) const { return at(x, t, head); }
  template <class V> FWP_DEVICE V* at(const Rows<V>& x, int64_t t, int head) const {
    return x.data + b * x.batch + t * x.time + head * x.head;
  }
  FWP_DEVICE bool is_pad(int64_t t) const { return c.key_padding_mask.data && *at(c.key_padding_mask, t); }
  // True for the lane that stores the number of its column.
  FWP_DEVICE bool stores() const { return lane < warp_columns && column < d; }

  FWP_DEVICE void fetch(float (&x)[N], const float* from) const {
    FWP_UNROLL (int r = 0; r < N; ++r) x[r] = from && lane + 32 * r < d ? from[lane + 32 * r] : 0.f;
  }
  FWP_DEVICE float fetch_column(const float* from) const { return column < d ? from[column] : 0.f; }
  FWP_DEVICE void put(float* to, const float (&x)[N]) const {
    FWP_UNROLL (int r = 0; r < N; ++r)
      if (lane + 32 * r < d) to[lane + 32 * r] = x[r];
  }
  FWP_DEVICE void fetch_matrix(Matrix& R, const float* from) const { fetch_matrix(R, from, matrix); }
  FWP_DEVICE void fetch_matrix(Matrix& R, const float* from, int64_t matrix) const {
    FWP_UNROLL (int r = 0; r < N; ++r)
      FWP_UNROLL (int e = 0; e < warp_columns; ++e) {
        const int i = lane + 32 * r, j = warp_columns * warp + e;
        R[r][e] = from && i < d && j < d ? from[matrix + i * d + j] : 0.f;
      }
  }
  FWP_DEVICE void put_matrix(float* to, const Matrix& R) const { put_matrix(to, R, matrix); }
  FWP_DEVICE void put_matrix(float* to, const Matrix& R, int64_t matrix) const {
    // The addresses are computed again, because those of fetch_matrix would occupy registers during the whole kernel.
    const int first = kept(warp_columns * warp), left = d - first;
    to += matrix + lane * d + first;
    FWP_UNROLL (int r = 0; r < N; ++r, to += 32 * d)
      if (lane + 32 * r < d) {
        FWP_UNROLL (int e = 0; e < warp_columns; ++e)
          if (e < left) to[e] = R[r][e];
      }
  }

  // The address of this head's vector in a state that is passed from call to call.
  template <class V> FWP_DEVICE V* carried(V* x) const { return x ? x + int64_t(block_index()) * d : nullptr; }

  // The sum over all rows.
  FWP_DEVICE float sum(const float (&x)[N]) const {
    float total = 0;
    FWP_UNROLL (int r = 0; r < N; ++r) total += x[r];
    FWP_UNROLL (int mask = 16; mask > 0; mask /= 2) total += shuffle_xor(total, mask);
    return total;
  }
  FWP_DEVICE float dot(const float (&x)[N], const float (&y)[N]) const {
    float products[N];
    FWP_UNROLL (int r = 0; r < N; ++r) products[r] = x[r] * y[r];
    return sum(products);
  }
  FWP_DEVICE void softmax(float (&f)[N], const float (&y)[N]) const {
    float most = shuffle(y[0], 0);  // for lanes without a row
    FWP_UNROLL (int r = 0; r < N; ++r) most = lane + 32 * r < d ? larger(most, y[r]) : most;
    FWP_UNROLL (int mask = 16; mask > 0; mask /= 2) most = larger(most, shuffle_xor(most, mask));
    FWP_UNROLL (int r = 0; r < N; ++r) f[r] = lane + 32 * r < d ? exponential(y[r] - most) : 0.f;
    const float share = 1 / sum(f);
    FWP_UNROLL (int r = 0; r < N; ++r) f[r] *= share;
  }

  // Adds up 8 numbers, one for each column, over all lanes; each lane gets the sum of its column. In each step, a lane
  // passes half of its numbers to another lane and keeps the others.
  FWP_DEVICE float column_sums(float (&x)[warp_columns]) const {
    FWP_UNROLL (int half = warp_columns / 2; half > 0; half /= 2) {
      const bool upper = lane & half;
      FWP_UNROLL (int e = 0; e < half; ++e) {
        const float kept = upper ? x[e + half] : x[e], handed = upper ? x[e] : x[e + half];
        x[e] = kept + shuffle_xor(handed, half);
      }
    }
    x[0] += shuffle_xor(x[0], 8);
    return x[0] + shuffle_xor(x[0], 16);
  }
  // Gives every lane the numbers of all of the warp's columns.
  FWP_DEVICE void spread(float (&x)[warp_columns], float own) const {
    FWP_UNROLL (int e = 0; e < warp_columns; ++e) x[e] = shuffle(own, e);
  }
  // Returns the entry of a vector over rows whose index is this lane's column.
  FWP_DEVICE float of_column(const float (&x)[N]) const {
    float own = x[0];
    FWP_UNROLL (int r = 1; r < N; ++r) own = warp * warp_columns / 32 == r ? x[r] : own;
    return shuffle(own, column % 32);
  }

  // y = R x, of this lane's column.
  FWP_DEVICE float read(const Matrix& R, const float (&x)[N]) const {
    float y[warp_columns];
    FWP_UNROLL (int e = 0; e < warp_columns; ++e) {
      y[e] = 0;
      FWP_UNROLL (int r = 0; r < N; ++r) y[e] += x[r] * R[r][e];
    }
    return column_sums(y);
  }
  // R += u k^T; u of this lane's column.
  FWP_DEVICE void add(Matrix& R, const float (&k)[N], float own) const {
    float u[warp_columns];
    spread(u, own);
    FWP_UNROLL (int r = 0; r < N; ++r)
      FWP_UNROLL (int e = 0; e < warp_columns; ++e) R[r][e] += k[r] * u[e];
  }
  // R += u k^T with u = beta (v - R k), which is returned; v and u of this lane's column.
  FWP_DEVICE float write(Matrix& R, const float (&k)[N], float v, float beta) const {
    const float u = beta * (v - read(R, k));
    add(R, k, u);
    return u;
  }

  // This warp's part of R^T g, added to `to`; g of this lane's column.
  FWP_DEVICE void read_transposed(const Matrix& R, float own, float (&to)[N]) const {
    float g[warp_columns];
    spread(g, own);
    FWP_UNROLL (int r = 0; r < N; ++r)
      FWP_UNROLL (int e = 0; e < warp_columns; ++e) to[r] += R[r][e] * g[e];
  }
  // The backward pass of y = R x, where g is the gradient of y: G += g x^T, and this warp's part of dx = R^T g.
  FWP_DEVICE void read_back(const Matrix& R, Matrix& G, const float (&x)[N], const float (&g)[warp_columns],
                            float (&dx)[N]) const {
    FWP_UNROLL (int r = 0; r < N; ++r) {
      dx[r] = 0;
      FWP_UNROLL (int e = 0; e < warp_columns; ++e) {
        dx[r] += R[r][e] * g[e];
        G[r][e] += x[r] * g[e];
      }
    }
  }
  // The backward pass of `write`: R before the write is R - u k^T, and with g = G k
  //
  //     dv = beta g (returned),  dbeta = g.(v - R k),  dk = G^T u - R^T dv,  G <- G - dv k^T
  //
  // dk and dbeta are this warp's parts.
  FWP_DEVICE float write_back(Matrix& R, Matrix& G, const float (&k)[N], float written, float v, float beta,
                              float (&dk)[N], float& dbeta) const {
    float u[warp_columns], g[warp_columns], old[warp_columns];
    spread(u, written);
    FWP_UNROLL (int e = 0; e < warp_columns; ++e) {
      g[e] = old[e] = 0;
      FWP_UNROLL (int r = 0; r < N; ++r) {
        R[r][e] -= k[r] * u[e];
        g[e] += k[r] * G[r][e];
        old[e] += k[r] * R[r][e];
      }
    }
    const float own_g = column_sums(g), own = beta * own_g;
    dbeta = own_g * (v - column_sums(old));
    FWP_UNROLL (int mask = warp_columns / 2; mask > 0; mask /= 2) dbeta += shuffle_xor(dbeta, mask);
    float dv[warp_columns];
    spread(dv, own);
    FWP_UNROLL (int r = 0; r < N; ++r) {
      dk[r] = 0;
      FWP_UNROLL (int e = 0; e < warp_columns; ++e) {
        dk[r] += G[r][e] * u[e] - R[r][e] * dv[e];
        G[r][e] -= k[r] * dv[e];
      }
    }
    return own;
  }

  // Adds up the vectors over rows that the warps have put into `parts` (warps x rows), in `sums` (rows). Run by all
  // threads; the caller needs a barrier before and after it.
  FWP_DEVICE void add_up(const float* parts, float* sums) const {
    FWP_ROLLED (int i = thread_index(); i < d; i += 32 * warps) {
      float total = 0;
      FWP_ROLLED (int w = 0; w < warps; ++w) total += parts[w * rows + i];
      sums[i] = total;
    }
  }
  // The sum of one number from each warp.
  FWP_DEVICE float sum_of_warps(const float* parts) const {
    float total = 0;
    FWP_ROLLED (int w = 0; w < warps; ++w) total += parts[w];
    return total;
  }
  // Sets `before` to the last position before t that is no pad, -1 if there is none. Going back, it is looked for again
  // only when t reaches it, so that a run of pads is read once.
  FWP_DEVICE void go_before(int64_t t, int64_t& before) const {
    if (before < t) return;
    before = t - 1;
    while (before >= 0 && is_pad(before)) --before;
  }
};

}  // namespace fwp::gpu
