// Shared by the forward and backward kernels of a sentence of up to ROWS queries and keys. A block processes a head,
// and each of its warps 16 rows of queries and of keys. Equations: ../README.md.
#pragma once

#include "maps.cuh"

namespace fwp::gpu {

// The row length of matrices of keys by keys in shared memory: 16 bytes more than a multiple of 32.
template <int ROWS> constexpr int square_ld_of = ROWS + 8;

template <int ROWS, bool CORRECTS, bool DECAYS, bool DPFP> struct Short : Slabs<ROWS, DPFP> {
  using Base = Slabs<ROWS, DPFP>;
  using Base::c, Base::thread, Base::lane, Base::warp, Base::g, Base::t, Base::row, Base::x, Base::phi, Base::of_q,
      Base::of_k, Base::threads, Base::pieces;
  static constexpr int tiles = ROWS / 16, square_ld = square_ld_of<ROWS>, blocks = ROWS / 8;
  static constexpr bool weighs = DECAYS && !CORRECTS;  // whether beta multiplies all that a key writes
  using Square = float[2 * tiles][4];  // own rows, a column for each key

  float *beta, *most;  // write strengths (0 at padding); a number for each warp
  // Under rules that decay: keep of each key (decay.cuh); and products of keep: from the start of the key's block of 8
  // up to and including it, over the rest of this block after it, over whole blocks, and over all later keys.
  float *keep, *begun, *rest, *whole, *end;

  FWP_DEVICE Short(const Call& call, int head) : Base(call, head) {}

  static FWP_BOTH void lay_vectors(Short* s, Parts& take) {
    float* unused;
    take(s ? s->of_q : unused, 4 * ROWS), take(s ? s->of_k : unused, 4 * ROWS);
    take(s ? s->beta : unused, 4 * ROWS), take(s ? s->most : unused, 32);
    if (!DECAYS) return;
    take(s ? s->keep : unused, 4 * ROWS), take(s ? s->begun : unused, 4 * ROWS);
    take(s ? s->rest : unused, 4 * ROWS), take(s ? s->end : unused, 4 * ROWS), take(s ? s->whole : unused, 4 * blocks);
  }

  // Loads the gates of all keys, and computes the products that decays consist of; has a barrier for `keep`. The caller
  // has a barrier before the results are read.
  FWP_DEVICE void load_gates() const {
    if (thread < ROWS) {
      const bool there = this->is_there(thread, true);
      beta[thread] = !there ? 0.f : c.beta.data ? c.beta.data[this->offset(c.beta, thread, c.sources)] : 1.f;
      if constexpr (DECAYS) {
        const bool has_alpha = there && takes_alpha(c.rule);
        const float alpha = has_alpha ? c.alpha.data[this->offset(c.alpha, thread, c.sources)] : 1.f;
        keep[thread] = keep_of(c.rule, beta[thread], alpha);
      }
    }
    if constexpr (DECAYS) {
      sync_block();
      if (thread < ROWS) {
        const int first = thread / 8 * 8;
        float before = 1, after = 1;
        FWP_UNROLL (int j = 0; j < 8; ++j) {
          const float y = keep[first + j];
          if (first + j <= thread) before *= y;
          else after *= y;
        }
        begun[thread] = before, rest[thread] = after;
        if (thread % 8 == 7) whole[thread / 8] = before;
        float left = 1;
        if (!c.causal)
          FWP_ROLLED (int j = thread + 1; j < ROWS; ++j) left *= keep[j];
        end[thread] = left;
      }
    }
  }
  // Calls f(n, i, D) for the warp's rows of D (decay.cuh), strip n and number i; D is 1 on the diagonal and, within its
  // strip, above it. D is the product of keep over the query's block of 8, whole blocks, and the key's block.
  template <class F> FWP_DEVICE void each_decay(F f) const {
    FWP_UNROLL (int r = 0; r < 2; ++r) {
      const int own = 2 * warp + r;
      float left = begun[row + g + 8 * r], d[2] = {1, 1};
      FWP_UNROLL (int j = 1; j < 8; ++j) {
        const float y = keep[8 * own + j];
        FWP_UNROLL (int i = 0; i < 2; ++i)
          if (j > 2 * t + i && j <= g) d[i] *= y;
      }
      FWP_UNROLL (int n = 2 * tiles - 1; n >= 0; --n) {
        if (n > own) continue;
        if (n < own) {
          const Float2 y = *reinterpret_cast<const Float2*>(rest + 8 * n + 2 * t);
          d[0] = left * y.x, d[1] = left * y.y;
          left *= whole[n];
        }
        f(n, 2 * r, d[0]), f(n, 2 * r + 1, d[1]);
      }
    }
  }
  // Calls f(n, i, the decay at the end of all keys), at which queries read them if not causal.
  template <class F> FWP_DEVICE void each_last_decay(F f) const {
    FWP_UNROLL (int n = 0; n < 2 * tiles; ++n)
      FWP_UNROLL (int i = 0; i < 4; ++i) f(n, i, end[8 * n + 2 * t + i % 2]);
  }
  FWP_DEVICE int last_tile() const { return c.causal ? warp : tiles - 1; }

  // Computes the warp's rows of Q K^T and, below the diagonal, of K K^T, and the row sums of features, over all slabs.
  FWP_DEVICE void add_grams(Square& p, Square& a, float (&sum_q)[4], float (&sum_k)[4]) const {
    constexpr uint32_t one = 0x3c003c00u;
    const int last = kept(last_tile()), slabs = this->slabs();
    const bool sums = c.normalize_features;
    FWP_ROLLED (int s = 0; s < slabs; ++s) {
      const int columns = this->columns(s);
      this->make(s, columns);
      sync_block();
      const uint16_t* own = phi + (row + this->near + this->r8) * tile_ld + this->far;
      const uint16_t* keys = phi + (ROWS + this->far + this->r8) * tile_ld + this->near;
      FWP_ROLLED (const uint16_t* const end = own + columns; own < end; own += 16, keys += 16) {
        uint32_t Q[4], K[4];
        load_matrices(Q, own);
        if (CORRECTS) load_matrices(K, own + ROWS * tile_ld);
        if (sums) {
          if (!CORRECTS) load_matrices(K, own + ROWS * tile_ld);
          mma_half(sum_q, Q, one, one), mma_half(sum_k, K, one, one);
        }
        FWP_UNROLL (int n = 0; n < tiles; ++n) {
          if (n > 0 && n > last && (!CORRECTS || n > warp)) continue;
          uint32_t B[4];
          load_matrices(B, keys + 16 * n * tile_ld);
          if (n == 0 || n <= last) this->add(p, 2 * n, Q, B);
          if constexpr (CORRECTS)
            if (n == 0 || n <= warp) this->add(a, 2 * n, K, B);
        }
      }
      sync_block();
    }
  }
  // Sets the numbers above the diagonal to 0; if OWN, those on it too.
  template <bool OWN> FWP_DEVICE void mask(Square& x) const {
    FWP_UNROLL (int n = 0; n < tiles; ++n) {
      if (n < warp) continue;
      FWP_UNROLL (int i = 0; i < 2; ++i) {
        const bool none = n > warp || 2 * t + i + OWN > g;
        x[2 * n][i] = none ? 0.f : x[2 * n][i];
        x[2 * n][i + 2] = n > warp ? 0.f : x[2 * n][i + 2];
        x[2 * n + 1][i] = 0;
        x[2 * n + 1][i + 2] = none ? 0.f : x[2 * n + 1][i + 2];
      }
    }
  }
  // The factor that normalises a row of features, from the sum of the scaled row and the factor `of` that undoes the
  // scaling.
  FWP_DEVICE float norm_of(float of, float sum) const {
    return c.normalize_features ? inverse_of(sum * of + c.eps) * of : of;
  }

  // Computes the warp's rows of T = (I + L)^-1, where L is rate A below the diagonal. T is stored as halves, and what
  // they round off in `low`. Blocks of 16 x 16 on the diagonal are inverted in float; the columns before the diagonal
  // follow from products of both parts, T_i = -(T_ii L_i) T. `floats` has 320 numbers for each warp. Needs a barrier
  // before it, and ends with one.
  FWP_DEVICE void invert(const Square& a, const float (&rate)[2], uint16_t* T, uint16_t* low, float* floats) const {
    constexpr int ld = 20;
    float* const L = floats + 16 * ld * warp;
    FWP_UNROLL (int n = 0; n < 2 * tiles; ++n)
      FWP_UNROLL (int r = 0; r < 2; ++r) {
        const float y = rate[r] * a[n][2 * r], z = rate[r] * a[n][2 * r + 1];
        if (n / 2 < warp) put_pair(T, low, row + g + 8 * r, 8 * n + 2 * t, y, z);
        if (n / 2 == warp) *reinterpret_cast<Float2*>(L + (g + 8 * r) * ld + 8 * (n % 2) + 2 * t) = {y, z};
      }
    sync_warp();
    invert_block(L, lane < 16 ? T : low, lane < 16);
    sync_warp();
    Square y;
    clear(y);
    uint32_t A[2][4];
    this->left(A[0], T, square_ld, row, row), this->left(A[1], low, square_ld, row, row);
    FWP_UNROLL (int n = 0; n < tiles - 1; ++n)
      if (n < warp) add_pairs(y, n, A, T, low, row);
    sync_warp();
    Square own;
    clear(own);
    FWP_ROLLED (int i = 0; i < tiles; ++i) {
      if (warp == i)
        FWP_UNROLL (int n = 0; n < 2 * tiles - 2; ++n)
          if (n / 2 < i)
            FWP_UNROLL (int r = 0; r < 2; ++r)
              put_pair(T, low, row + g + 8 * r, 8 * n + 2 * t, own[n][2 * r], own[n][2 * r + 1]);
      sync_block();
      if (warp <= i) continue;
      float some[2][4] = {};
      FWP_UNROLL (int n = 0; n < 2 * tiles; ++n)
        if (n / 2 == i)
          FWP_UNROLL (int j = 0; j < 4; ++j) some[n % 2][j] = -y[n][j];
      pack_operand(A[0], some[0], some[1]);
      pack_rest(A[1], A[0], some[0], some[1]);
      FWP_UNROLL (int n = 0; n < tiles - 1; ++n)
        if (n <= i) add_pairs(own, n, A, T, low, 16 * i);
    }
  }
  FWP_DEVICE void put_pair(uint16_t* T, uint16_t* low, int r, int column, float y, float z) const {
    const uint32_t high = pack_halves(y, z);
    *reinterpret_cast<uint32_t*>(T + r * square_ld + column) = high;
    *reinterpret_cast<uint32_t*>(low + r * square_ld + column) = rest_of(y, z, high);
  }
  // sum += A B for the 16 columns from 16 n on, over 16 rows of B from k on; A and B are pairs of halves
  FWP_DEVICE void add_pairs(Square& sum, int n, const uint32_t (&A)[2][4], const uint16_t* T, const uint16_t* low,
                            int k) const {
    uint32_t B[4], C[4];
    this->right(B, T, square_ld, k, 16 * n), this->right(C, low, square_ld, k, 16 * n);
    this->add(sum, 2 * n, A[1], B);
    this->add(sum, 2 * n, A[0], C);
    this->add(sum, 2 * n, A[0], B);
  }
  // Two lanes compute each column; one stores the halves, the other what they round off.
  FWP_DEVICE void invert_block(const float* L, uint16_t* to, bool high) const {
    float y[16];
    const int j = lane % 16;
    FWP_UNROLL (int i = 0; i < 16; ++i) {
      y[i] = i == j ? 1.f : 0.f;
      FWP_UNROLL (int k = 0; k < i; ++k) y[i] -= L[i * 20 + k] * y[k];
    }
    FWP_UNROLL (int i = 0; i < 16; ++i) {
      const uint16_t half = to_half(y[i]);
      to[(row + i) * square_ld + row + j] = high ? half : to_half(y[i] - from_half(half));
    }
  }

  // Converts a tile from the call's type to halves, multiplied by by[row], if `by` is given, and by a power of two,
  // which it returns. Each thread converts what it has copied. Has a barrier; the caller needs another one after it.
  static constexpr int columns_power = 7;
  FWP_DEVICE float scale_columns(uint16_t* tile, const float* by) const {
    constexpr int further = Base::across * tile_ld;
    uint16_t* const first = tile + this->first_row() * tile_ld + this->column();
    uint32_t most = 0;
    float largest = 0;
    FWP_ROLLED (int m = 0; m < pieces; ++m) {
      most = larger_magnitudes(by ? 0 : most, eight(first + m * further));
      if (by) largest = larger(largest, magnitude(c.type, most) * absolute(by[this->first_row() + m * Base::across]));
    }
    if (!by) largest = magnitude(c.type, most);
    const float power = shared_power(largest, columns_power);
    FWP_ROLLED (int m = 0; m < pieces; ++m) {
      uint16_t* const piece = first + m * further;
      const Eight x = eight(piece);
      put_eight(piece, by ? multiplied(c.type, x, power * by[this->first_row() + m * Base::across])
                          : scaled(c.type, x, power));
    }
    return power;
  }
  // Returns the same power for all threads. Has a barrier; the caller needs one before the next call.
  FWP_DEVICE float shared_power(float largest, int to) const {
    largest = largest_of_warp(largest);
    if (lane == 0) most[warp] = largest;
    sync_block();
    FWP_UNROLL (int w = 0; w < tiles; ++w) largest = larger(largest, most[w]);
    return power_for(largest, to);
  }
  // Stores the warp's rows of 64 columns, from `first` on, times by[r]. Each warp uses its own rows of the tile
  // `through`.
  FWP_DEVICE void store_columns(const Rows<void>& to, uint16_t* through, const Strip<8>& y, const float (&by)[2],
                                int length, int first) const {
    uint32_t* const own = reinterpret_cast<uint32_t*>(through + (row + g) * tile_ld + 2 * t);
    const auto put = [&](auto pack) {
      FWP_UNROLL (int r = 0; r < 2; ++r)
        FWP_UNROLL (int n = 0; n < 8; ++n)
          own[4 * (r * tile_ld + n)] = pack(by[r] * y[n][2 * r], by[r] * y[n][2 * r + 1]);
    };
    if (c.type == Type::float16) put([](float a, float b) { return pack_halves(a, b); });
    else put([](float a, float b) { return pack_bfloat16s(a, b); });
    sync_warp();
    const int column = lane % 8 * 8, begin = row + lane / 8;
    const int end = first + column >= c.d_value ? 0 : row + 16 < length ? row + 16 : length;
    const uint16_t* from = through + begin * tile_ld + column;
    uint16_t* at = static_cast<uint16_t*>(to.data) + this->offset(to, begin, length) + first + column;
    const int64_t further = this->step(to, 4);
    FWP_ROLLED (int r = begin; r < end; r += 4, from += 4 * tile_ld, at += further) put_eight(at, eight(from));
    sync_warp();
  }
};

}  // namespace fwp::gpu
