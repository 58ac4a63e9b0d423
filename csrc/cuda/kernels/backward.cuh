// Backward of one (batch row, head), up to LT queries and keys at a time: one launch, one block a head, a warp for 16
// tokens; before it, for walked calls, one launch of the forward's kernel that leaves states on the way (piece.cuh).
// Recomputes everything from q, k, v, beta and the gradient of out. With the names of forward.cuh, G the gradient of N,
// gd and gs those of den and seen, rate = beta read_rate, gW and gz the gradients of the final state:
//
//     G = gout / den, gd = -G.N / den
//     Z = (I + diag(rate) stril(K K^T))^-T (P^T G + K gW);  x = Z.(V - D), gs = rate x
//     dV = beta Z, dbeta = Z.D
//     dP = M o (G (beta D)^T + gd),  dKK = stril(gs - rate Z (beta D)^T)
//     dQ = dP K + G W0^T + gd z0^T,  dK = dP^T Q + (dKK + dKK^T) K + beta D gW^T + gz - rate Z W0^T + gs z0^T
//     dW0 = gW + Q^T G - K^T rate Z,  dz0 = gz + Q^T gd + K^T gs
//
// and with f = phi / (sum phi + eps): dphi = (df - df.f) / (sum phi + eps), where df.f of a token follows from the small
// products above. dphi is made in tiles of 16 tokens x 16 features and goes at once into the gradient of the inputs: for
// DPFP, dr_i = sum over offsets s = -nu .. nu of dphi(r_i r_{i+s}) r_{i+s}, each tile computed where it is needed.
#pragma once

#include "forward.cuh"

namespace fwp::gpu {

template <class P, int LT, bool DELTA, bool GENERAL> struct Backward : Head<P, LT, GENERAL> {
  using Base = Head<P, LT, GENERAL>;
  using Base::c, Base::here, Base::s, Base::g, Base::t, Base::row, Base::stride, Base::tiles, Base::strip_tiles, Base::lane,
      Base::value_tiles;
  using typename Base::Element, typename Base::Pair, typename Base::Strip, typename Base::Values;
  using KeyStrip = float[DELTA ? strip_tiles : 1][4];
  using Tile = float[2][4];  // 16 tokens x 16 features
  using Operands = Pair[tiles][4];

  const int w, keys, queries;  // own tile; tiles of keys and of queries
  const int last_q;            // own queries read the key tiles before this one
  const int first_k;           // own keys are read by the query tiles from this one on

  FWP_DEVICE Backward(const Call& call, const Piece& piece)
      : Base(call, piece, true), w(row / 16), keys(Base::source_tiles), queries(Base::target_tiles),
        last_q(w >= queries ? 0 : call.causal && w + 1 < keys ? w + 1 : keys),
        first_k(w >= keys ? queries : call.causal ? w : 0) {}

  FWP_DEVICE void run() {
    float sum_q[4] = {}, sum_k[4] = {};
    feature_sums(sum_q, sum_k);
    Base::finish_scales(sum_q, sum_k);
    sync_block();
    {
      KeyStrip B;
      solve_for_D(B);
      read();
      pull(B);
    }
    sync_block();
    store_query_gradient();
    store_key_gradient();
    if (GENERAL && here.gradient_before.W) write_state_gradient();
  }

  // x += (stored features of own tokens) W, columns first .. ; zx: features . z for the tokens g and g + 8.
  FWP_DEVICE void add_from_state(Values& x, float (&zx)[2], const Element* own, const State<const float>& state, int first) {
    const Columns<const float> from = columns_of(c, state, here.head, 0, c.d_value);
    float xz[4] = {};
    Base::for_slabs([&](int slab) {
      Base::for_features([&](int j, int i) {
        Pair features[4];
        Base::along_features(features, own, i, row, j);
        typename Base::Rows16 rows;
        Base::load_rows(rows, slab, j, i, from, first);
        Base::add_rows(x, xz, features, rows, from.z);
      });
    });
    Base::first_column(zx, xz);
  }

  FWP_DEVICE void feature_sums(float (&sum_q)[4], float (&sum_k)[4]) {
    const Pair one = P::pair(1, 1);
    Base::for_slabs([&](int) {
      if (!c.normalize_features) return;
      Base::for_features([&](int j, int i) {
        Pair x[4];
        Base::along_features(x, s.queries, i, row, j);
        P::mma(sum_q, x, one, one);
        Base::along_features(x, s.keys, i, row, j);
        P::mma(sum_k, x, one, one);
      });
    });
  }

  // D to shared memory. B, for delta: K K^T, scaled: left of the diagonal by -read_rate of the row and beta of the column
  // (the system of D), right of it by -rate of the column (the transposed system of Z), 0 on it.
  FWP_DEVICE void solve_for_D(KeyStrip& B) {
    Base::clear(B);
    const bool state = GENERAL && here.before.W && keys;
    const float scale[2] = {s.scale_k[row + g], s.scale_k[row + g + 8]};
    float seen[2] = {}, rate[2] = {1, 1};
    if constexpr (DELTA) {
      Base::add_gram(B, s.keys, s.keys, 0, w < keys ? keys : 0);
      Base::for_strip([&](int n, int i, int j) {
        const int k = Base::row_of(i);
        B[n][i] = j == k ? 0.f : B[n][i] * (scale[i >> 1] * s.scale_k[j]);
        if (j < k) seen[i >> 1] += B[n][i];
      });
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        seen[r] = Base::quad_sum(seen[r]);
        rate[r] = Base::rate_of(seen[r] + c.eps);
      }
      if (!state) prepare(B, rate);
    }
#pragma unroll 1
    for (int first = 0; first < c.d_value; first += value_block) {
      Values x;
      Base::load_values(c.v, true, first, x);
      if constexpr (DELTA) {
        if (state) {
          Values old;
          float from_z[2] = {};
          Base::clear(old);
          add_from_state(old, from_z, s.keys, here.before, first);
          if (first == 0) {
#pragma unroll
            for (int r = 0; r < 2; ++r) rate[r] = Base::rate_of(seen[r] + scale[r] * from_z[r] + c.eps);
            prepare(B, rate);
          }
#pragma unroll
          for (int n = 0; n < value_tiles; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i) x[n][i] -= rate[i >> 1] * scale[i >> 1] * old[n][i];
        }
        if (w >= keys) Base::share_values(s.D, first, x);
#pragma unroll 1
        for (int m = 0; m < keys; ++m) {
          if (w == m) solve_block(x, s.D, first, false);
          sync_block();
          if (w > m) {
            Float2 a[4];
            Base::operand_at(a, B, m);
            Base::add_product(x, a, s.D, m, first);
          }
        }
      } else {
        Base::share_values(s.D, first, x);
      }
    }
    sync_block();
  }

  // B from the scaled products of keys; read rates and the inverse of the own diagonal block to shared memory.
  FWP_DEVICE void prepare(KeyStrip& B, const float (&rate)[2]) {
    if constexpr (DELTA) {
      if (t == 0) s.read_rate[row + g] = rate[0], s.read_rate[row + g + 8] = rate[1];
      sync_block();
      Base::for_strip([&](int n, int i, int j) {
        B[n][i] *= j < Base::row_of(i) ? -rate[i >> 1] * s.beta[j] : -s.beta[j] * s.read_rate[j];
      });
      share_block(B, s.square, false);
    }
  }

  // The inverse of the diagonal block to shared memory; of the transposed system with rows and columns in reverse order.
  FWP_DEVICE void share_block(const KeyStrip& B, float* squares, bool reverse) {
    float* block = squares + w * 16 * 17;
    Base::for_strip([&](int n, int i, int j) {
      if constexpr (DELTA) {
        const int k = Base::row_of(i) - row, l = j - row;
        if (l < 0 || l >= 16) return;
        if (reverse) block[(15 - k) * 17 + 15 - l] = -B[n][i];
        else block[k * 17 + l] = -B[n][i];
      }
    });
    sync_warp();
    Base::invert(block);
  }

  // Own rows `to`, columns from `first` on, = the inverted diagonal block times x.
  FWP_DEVICE void solve_block(Values& x, float* to, int first, bool reverse) {
    const float* block = s.square + w * 16 * 17;
    Base::share_values(to, first, x);
    sync_warp();
    Float2 a[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int k = g + 8 * (i & 1), l = 2 * t + 8 * (i >> 1);
      if (reverse) a[i] = {block[(15 - k) * 17 + 15 - l], block[(15 - k) * 17 + 14 - l]};
      else a[i] = {block[k * 17 + l], block[k * 17 + l + 1]};
    }
    Base::clear(x);
    Base::add_product(x, a, to, w, first);
    sync_warp();
    Base::share_values(to, first, x);
  }

  // G, gd and df.f of own queries (shift_q) to shared memory.
  FWP_DEVICE void read() {
    Strip A;
    Base::clear(A);
    Base::add_gram(A, s.queries, s.keys, 0, last_q);
    const float scale[2] = {s.scale_q[row + g], s.scale_q[row + g + 8]};
    const bool state = GENERAL && here.before.W && queries;
    float den[2] = {}, dot[2] = {}, by[2];
    Base::for_strip([&](int n, int i, int j) {
      const float x = c.causal && j > Base::row_of(i) ? 0.f : A[n][i] * (scale[i >> 1] * s.scale_k[j]);
      den[i >> 1] += x;
      A[n][i] = x * s.beta[j];
    });
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      den[r] = Base::quad_sum(den[r]);
      by[r] = Base::rate_of(den[r] + c.eps);
    }
#pragma unroll 1
    for (int first = 0; first < c.d_value; first += value_block) {
      Values x;
      Base::clear(x);
      if (state) {
        float from_z[2] = {};
        add_from_state(x, from_z, s.queries, here.before, first);
#pragma unroll
        for (int n = 0; n < value_tiles; ++n)
#pragma unroll
          for (int i = 0; i < 4; ++i) x[n][i] *= scale[i >> 1];
#pragma unroll
        for (int r = 0; r < 2; ++r) by[r] = Base::rate_of(den[r] + scale[r] * from_z[r] + c.eps);
      }
      Base::add_read(x, A, s.D, 0, last_q, first);
      Base::share_values(s.G, first, x);
#pragma unroll 1
      for (int n = 0; n < value_tiles * 4; ++n) {  // each lane its own numbers
        const int i = Base::row_of(n & 2), column = first + 8 * (n >> 2) + 2 * t + (n & 1);
        const bool there = i < here.queries && column < c.d_value;
        const float gradient = there ? P::load(c.type, c.grad_out.data, Base::offset(c.grad_out, i) + column) : 0.f;
        float& at = s.G[i * stride + column];
        if (n & 2) dot[1] += gradient * by[1] * at;
        else dot[0] += gradient * by[0] * at;
        at = gradient * (n & 2 ? by[1] : by[0]);
      }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      dot[r] = Base::quad_sum(dot[r]);
      if (t == 0) {
        s.shift_q[row + g + 8 * r] = c.normalize_output ? dot[r] * by[r] * c.eps : dot[r];
        s.gradient_den[row + g + 8 * r] = c.normalize_output ? -dot[r] * by[r] : 0.f;
      }
    }
    sync_block();
  }

  // Z, x and df.f of own keys (shift_k) to shared memory, gradients of v and beta to memory.
  FWP_DEVICE void pull(const KeyStrip& B) {
    Strip A;
    Base::clear(A);
    Base::add_gram(A, s.keys, s.queries, first_k, queries);
    const float scale[2] = {s.scale_k[row + g], s.scale_k[row + g + 8]};
    const float beta[2] = {s.beta[row + g], s.beta[row + g + 8]};
    float from_den[2] = {}, from_gz[2] = {}, ZD[2] = {}, x[2] = {}, shift[2];
    Base::for_strip([&](int n, int i, int j) {
      A[n][i] = c.causal && j < Base::row_of(i) ? 0.f : A[n][i] * (scale[i >> 1] * s.scale_q[j]);
      from_den[i >> 1] += A[n][i] * s.gradient_den[j];
    });
    if constexpr (DELTA) share_block(B, s.square, true);
#pragma unroll 1
    for (int first = 0; first < c.d_value; first += value_block) {
      Values Z;
      Base::clear(Z);
      if (GENERAL && here.gradient_after.W && keys) {
        float from_z[2] = {};
        add_from_state(Z, from_z, s.keys, here.gradient_after, first);
#pragma unroll
        for (int r = 0; r < 2; ++r)
          if (first == 0) from_gz[r] = scale[r] * from_z[r];
#pragma unroll
        for (int n = 0; n < value_tiles; ++n)
#pragma unroll
          for (int i = 0; i < 4; ++i) Z[n][i] *= scale[i >> 1];
      }
      Base::add_read(Z, A, s.G, first_k, queries, first);
      if constexpr (DELTA) {
        if (w >= keys) Base::share_values(s.Z, first, Z);
#pragma unroll 1
        for (int m = keys - 1; m >= 0; --m) {
          if (w == m) solve_block(Z, s.Z, first, true);
          sync_block();
          if (w < m) {
            Float2 a[4];
            Base::operand_at(a, B, m);
            Base::add_product(Z, a, s.Z, m, first);
          }
        }
      } else {
        Base::share_values(s.Z, first, Z);
      }
#pragma unroll 1
      for (int n = 0; n < value_tiles * 4; ++n) {  // from shared memory and in a loop: the strips hold the registers
        const int i = Base::row_of(n & 2), column = first + 8 * (n >> 2) + 2 * t + (n & 1);
        const float Z = s.Z[i * stride + column], D = s.D[i * stride + column];
        const bool there = i < here.keys && column < c.d_value;
        if (n & 2) ZD[1] += Z * D;
        else ZD[0] += Z * D;
        if constexpr (DELTA) {
          const float V = there && Base::key_there(i) ? P::load(c.type, c.v.data, Base::offset(c.v, i) + column) : 0.f;
          if (n & 2) x[1] += Z * (V - D);
          else x[0] += Z * (V - D);
        }
        if (there) P::store(c.type, c.grad_v.data, Base::offset(c.grad_v, i) + column, s.beta[i] * Z);
      }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int i = row + g + 8 * r;
      from_den[r] = Base::quad_sum(from_den[r]);
      ZD[r] = Base::quad_sum(ZD[r]);
      x[r] = Base::quad_sum(x[r]);
      if (t == 0) s.gradient_seen[i] = DELTA && c.normalize_output ? x[r] : 0.f;
      if (DELTA && t == 0 && i < here.keys)
        c.grad_beta.data[Base::offset(c.grad_beta, i)] = Base::key_there(i) ? ZD[r] : 0.f;
      shift[r] = beta[r] * ZD[r] + from_den[r] + from_gz[r];
    }
    if constexpr (DELTA) {
      sync_block();
      float from_seen[2] = {};
      Base::for_strip([&](int n, int i, int j) {
        if (j > Base::row_of(i)) from_seen[i >> 1] -= B[n][i] * s.gradient_seen[j];
      });
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float rate = beta[r] * s.read_rate[row + g + 8 * r];
        shift[r] += Base::quad_sum(from_seen[r]) - rate * x[r] * (c.normalize_output ? c.eps : 1.f);
      }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r)
      if (t == 0) s.shift_k[row + g + 8 * r] = shift[r];
  }

  // ---- gradients of features ----

  // tile (16 own tokens x 16 tokens) += own rows . rows of another tile m
  FWP_DEVICE void add_pairs(float (&left)[4], float (&right)[4], const float* own, const float* other, int m) const {
#pragma unroll 1
    for (int k = 0; k < value_blocks(c) * value_block; k += 16) {
      Float2 a[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float* at = own + (row + g + 8 * (i & 1)) * stride + k + 2 * t + 8 * (i >> 1);
        a[i] = {at[0], at[1]};
      }
      const float* at = other + (16 * m + g) * stride + k + 2 * t;
      P::mma(left, a, Float2{at[0], at[1]}, Float2{at[8], at[9]});
      at += 8 * stride;
      P::mma(right, a, Float2{at[0], at[1]}, Float2{at[8], at[9]});
    }
  }

  // The strip as operands, each row brought near 1 for fp16; `back` undoes that.
  FWP_DEVICE void operands(Operands& a, float (&back)[2], const Strip& strip) const {
    float by[2] = {1, 1};
    back[0] = back[1] = 1;
    if (P::scaled) {
      float largest[2] = {};
      Base::for_strip([&](int n, int i, int) {
        const float x = absolute(strip[n][i]);
        largest[i >> 1] = x > largest[i >> 1] ? x : largest[i >> 1];
      });
#pragma unroll
      for (int r = 0; r < 2; ++r) {
#pragma unroll
        for (int d = 1; d < 4; d *= 2) {
          const float other = shuffle_xor(largest[r], d);
          largest[r] = other > largest[r] ? other : largest[r];
        }
        const float power = power_below(largest[r]);
        by[r] = 1 / power;
        back[r] = power;
      }
    }
#pragma unroll
    for (int m = 0; m < tiles; ++m)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float* x = strip[2 * m + (i >> 1)] + 2 * (i & 1);
        a[m][i] = P::pair(x[0] * by[i & 1], x[1] * by[i & 1]);
      }
  }

  // tile += back (operands times r_i r_{i+shift} of the side's tokens), features from `first` on
  FWP_DEVICE void add_features(Tile& tile, const Operands& a, const float (&back)[2], const Element* side, int first,
                               int shift, int first_tile, int last_tile) const {
    Tile x;
    Base::clear(x);
#pragma unroll
    for (int m = 0; m < tiles; ++m)
      if (m >= first_tile && m < last_tile) {
        Pair y[4];
        Base::along_tokens(y, side, first, 16 * m, shift);
        P::mma(x[0], a[m], y[0], y[2]);
        P::mma(x[1], a[m], y[1], y[3]);
      }
#pragma unroll
    for (int n = 0; n < 2; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) tile[n][i] += back[i >> 1] * x[n][i];
  }

  // Number of the feature r_i r_{i+shift} (any i), or of base row i for the other maps.
  FWP_DEVICE int product_number(int slab, int i, int shift) const {
    if (c.map != Map::dpfp) return Base::feature_number(slab, 0, i);
    return shift < 0 ? Base::feature_number(0, -shift, Base::wrap(i)) : Base::feature_number(0, shift, Base::wrap(i + shift));
  }
  // tile += by (own rows . rows of W that belong to the features)
  FWP_DEVICE void add_state_rows(Tile& tile, const float* own, const float (&by)[2], const float* W, int slab, int first,
                                 int shift) const {
    const float* W_here = W + int64_t(here.head) * c.d_dot * c.d_value;
    const int width = c.d_value;
    Tile x;
    Base::clear(x);
    const float* rows[2];
    bool there[2];
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const int f = product_number(slab, first + 8 * n + g, shift);
      there[n] = f >= 0;
      rows[n] = W_here + int64_t(f) * width + 2 * t;
    }
    Base::for_state(width, [&](auto full) {
      constexpr int steps = full.value ? value_block / 16 : 1;  // of 16 columns: their loads do not wait for each other
#pragma unroll 1
      for (int k = 0; k < width; k += 16 * steps) {
        Float2 b[steps][2][2];
#pragma unroll
        for (int q = 0; q < steps; ++q)
#pragma unroll
          for (int n = 0; n < 2; ++n)
#pragma unroll
            for (int e = 0; e < 2; ++e) {
              const int at = k + 16 * q + 8 * e, column = at + 2 * t;
              if constexpr (full.value) b[q][n][e] = Single::load_pair(Type::float32, rows[n], at);
              else b[q][n][e] = {there[n] && column < width ? rows[n][at] : 0.f, there[n] && column + 1 < width ? rows[n][at + 1] : 0.f};
            }
#pragma unroll
        for (int q = 0; q < steps; ++q) {
          Float2 a[4];
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const float* at = own + (row + g + 8 * (i & 1)) * stride + k + 16 * q + 2 * t + 8 * (i >> 1);
            a[i] = {at[0], at[1]};
          }
#pragma unroll
          for (int n = 0; n < 2; ++n) P::mma(x[n], a, b[q][n][0], b[q][n][1]);
        }
      }
    });
#pragma unroll
    for (int n = 0; n < 2; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) tile[n][i] += by[i >> 1] * x[n][i];
  }
  // tile += by z of the features
  FWP_DEVICE void add_state_z(Tile& tile, const float (&by)[2], const float* z, int slab, int first, int shift) const {
    const float* z_here = z + int64_t(here.head) * c.d_dot;
#pragma unroll
    for (int n = 0; n < 2; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int f = product_number(slab, first + 8 * n + 2 * t + (i & 1), shift);
        if (f >= 0) tile[n][i] += by[i >> 1] * z_here[f];
      }
  }

  // Gradient of own inputs. gradient(tile, slab, first, shift) adds that of the scaled features r_i r_{i+shift} (any
  // map's: of 16 base rows) from base row `first` on.
  template <class F> FWP_DEVICE void store_inputs(bool is_key, F gradient) {
    const Rows<const void>& from = is_key ? c.k : c.q;
    const Rows<void>& to = is_key ? c.grad_k : c.grad_q;
    const Element* side = is_key ? s.keys : s.queries;
    const float *unit = (is_key ? s.unit_k : s.unit_q) + row + g, *scale = (is_key ? s.scale_k : s.scale_q) + row + g;
    const float* shift_by = (is_key ? s.shift_k : s.shift_q) + row + g;
    float subtract[2], factor[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      subtract[r] = c.normalize_features ? shift_by[8 * r] : 0.f;
      factor[r] = c.map == Map::favor ? scale[8 * r] : scale[8 * r] / unit[8 * r];
    }
    if (GENERAL && c.map == Map::favor) {
      store_favor(is_key, from, to, side, subtract, factor, gradient);
      return;
    }
    Base::for_slabs([&](int slab) {
      const int start = c.map == Map::dpfp ? 0 : slab * Base::base_rows;
#pragma unroll 1
      for (int d = 0; d < Base::base_rows && start + d < c.d_key; d += 16) {
        Tile total;
        Base::clear(total);
#pragma unroll 1
        for (int sign = 0; sign < (c.map == Map::dpfp ? 2 : 1); ++sign) {
          const int first = sign ? c.d_key + d : d;
          Tile of_r;
          Base::clear(of_r);
#pragma unroll 1
          for (int shift = -c.nu; shift <= c.nu; ++shift) {  // the other maps: 0, once
            if (c.map == Map::dpfp && shift == 0) continue;
            Tile x;
            Base::clear(x);
            gradient(x, slab, first, shift);
            Pair other[4];
            P::by_columns(other, lane, row, [&](int i) { return side + Base::wrap(first + i + shift) * Base::ld; });
#pragma unroll
            for (int n = 0; n < 2; ++n)
#pragma unroll
              for (int r = 0; r < 2; ++r) {
                const Float2 y = c.map == Map::dpfp ? P::values(other[2 * n + r]) : Float2{1, 1};
                of_r[n][2 * r] += (x[n][2 * r] - subtract[r]) * y.x;
                of_r[n][2 * r + 1] += (x[n][2 * r + 1] - subtract[r]) * y.y;
              }
          }
#pragma unroll
          for (int n = 0; n < 2; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
              const int token = Base::row_of(i), column = start + d + 8 * n + 2 * t + (i & 1);
              const bool there = (is_key ? Base::key_there(token) : Base::query_there(token)) && column < c.d_key;
              const float input = there && c.map != Map::identity ? P::load(c.type, from.data, Base::offset(from, token) + column) : 0.f;
              if (c.map == Map::dpfp) total[n][i] += !sign ? (input > 0 ? of_r[n][i] : 0.f) : input < 0 ? -of_r[n][i] : 0.f;
              else total[n][i] = c.map == Map::elu && !(input > 0) ? of_r[n][i] * exponential(input) : of_r[n][i];
            }
        }
        store_tile(is_key, to, start + d, total, factor);
      }
    });
  }
  FWP_DEVICE void store_tile(bool is_key, const Rows<void>& to, int column, const Tile& x, const float (&factor)[2]) const {
    const int tokens = is_key ? here.keys : here.queries;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int token = row + g + 8 * r;
      if (token >= tokens) continue;
      const float by = is_key && !Base::key_there(token) ? 0.f : factor[r];
      const int64_t at = Base::offset(to, token);
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const int d = column + 8 * n + 2 * t;
        const Float2 y = {by == 0 ? 0.f : by * x[n][2 * r], by == 0 ? 0.f : by * x[n][2 * r + 1]};
        if (to.aligned && d < c.d_key) {
          P::store_pair(c.type, to.data, at + d, y);
        } else {
          if (d < c.d_key) P::store(c.type, to.data, at + d, y.x);
          if (d + 1 < c.d_key) P::store(c.type, to.data, at + d + 1, y.y);
        }
      }
    }
  }

  template <class F>
  FWP_DEVICE void store_favor(bool is_key, const Rows<const void>& from, const Rows<void>& to, const Element* side,
                              const float (&subtract)[2], const float (&factor)[2], F gradient) {
    const int half = Base::base_rows / 2, m = c.d_dot / 2;
    const float* top = (is_key ? s.unit_k : s.unit_q) + row + g;
    const bool clipped[2] = {top[0] == largest_favor_exponent, top[8] == largest_favor_exponent};
#pragma unroll 1
    for (int column = 0; column < c.d_key; column += 64) {
      Values dx;
      float sum[2] = {};
      Base::clear(dx);
      Base::for_slabs([&](int slab) {
#pragma unroll 1
        for (int first = 0; first < half; first += 16) {
          Tile difference;
          Base::clear(difference);
#pragma unroll 1
          for (int sign = 0; sign < 2; ++sign) {
            Tile x;
            Base::clear(x);
            gradient(x, slab, first + (sign ? half : 0), 0);
            Pair phi[4];
            P::by_columns(phi, lane, row, [&](int i) { return side + (first + (sign ? half : 0) + i) * Base::ld; });
#pragma unroll
            for (int n = 0; n < 2; ++n)
#pragma unroll
              for (int i = 0; i < 4; ++i) {
                const Float2 pair = P::values(phi[2 * n + (i >> 1)]);
                const float f = i & 1 ? pair.y : pair.x;
                const float y = clipped[i >> 1] && f == 1 ? 0.f : (x[n][i] - subtract[i >> 1]) * factor[i >> 1] * f;
                sum[i >> 1] += y;
                difference[n][i] += sign ? -y : y;
              }
          }
          const Float2 a[4] = {{difference[0][0], difference[0][1]}, {difference[0][2], difference[0][3]},
                               {difference[1][0], difference[1][1]}, {difference[1][2], difference[1][3]}};
          const int number = slab * half + first + 2 * t;
#pragma unroll
          for (int n = 0; n < value_tiles; ++n) {
            const int d = column + 8 * n + g;
            float r[4];
#pragma unroll
            for (int e = 0; e < 4; ++e) {
              const int i = number + (e & 1) + 8 * (e >> 1);
              r[e] = i < m && d < c.d_key ? c.projection[i * c.d_key + d] : 0.f;
            }
            mma_split(dx[n], a, Float2{r[0], r[1]}, Float2{r[2], r[3]});
          }
        }
      });
      const float norm[2] = {Base::quad_sum(sum[0]), Base::quad_sum(sum[1])};
      const float by[2] = {c.input_scale, c.input_scale};
#pragma unroll
      for (int n = 0; n < value_tiles; n += 2) {
        Tile x;
#pragma unroll
        for (int e = 0; e < 2; ++e)
#pragma unroll
          for (int r = 0; r < 2; ++r) {
            const Float2 input = Base::input_pair(from, is_key, row + g + 8 * r, column + 8 * (n + e) + 2 * t);
            x[e][2 * r] = dx[n + e][2 * r] - norm[r] * input.x;
            x[e][2 * r + 1] = dx[n + e][2 * r + 1] - norm[r] * input.y;
          }
        store_tile(is_key, to, column + 8 * n, x, by);
      }
    }
  }

  FWP_DEVICE void store_query_gradient() {
    Operands a;
    float back[2];
    const float gd[2] = {s.gradient_den[row + g], s.gradient_den[row + g + 8]};
    {
      Strip E;
      Base::clear(E);
#pragma unroll
      for (int m = 0; m < tiles; ++m)
        if (m < last_q) add_pairs(E[2 * m], E[2 * m + 1], s.G, s.D, m);
      Base::for_strip([&](int n, int i, int j) {
        const bool in = n < 2 * last_q && !(c.causal && j > Base::row_of(i));
        E[n][i] = in ? (s.beta[j] * E[n][i] + gd[i >> 1]) * s.scale_k[j] : 0.f;
      });
      operands(a, back, E);
    }
    store_inputs(false, [&](Tile& x, int slab, int first, int shift) {
      add_features(x, a, back, s.keys, first, shift, 0, last_q);
      if (GENERAL && here.before.W) {
        const float one[2] = {1, 1};
        add_state_rows(x, s.G, one, here.before.W, slab, first, shift);
        if (c.normalize_output) add_state_z(x, gd, here.before.z, slab, first, shift);
      }
    });
  }

  FWP_DEVICE void store_key_gradient() {
    Operands from_queries, from_keys;
    float back_q[2], back_k[2];
    float beta[2], rate[2], gs[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int i = row + g + 8 * r;
      beta[r] = s.beta[i];
      rate[r] = DELTA ? beta[r] * s.read_rate[i] : 0.f;
      gs[r] = rate[r] * s.gradient_seen[i];
    }
    {
      Strip E;
      Base::clear(E);
#pragma unroll
      for (int m = 0; m < tiles; ++m)
        if (m >= first_k && m < queries) add_pairs(E[2 * m], E[2 * m + 1], s.D, s.G, m);
      Base::for_strip([&](int n, int i, int j) {
        const bool in = n >= 2 * first_k && n < 2 * queries && !(c.causal && j < Base::row_of(i));
        E[n][i] = in ? (beta[i >> 1] * E[n][i] + s.gradient_den[j]) * s.scale_q[j] : 0.f;
      });
      operands(from_queries, back_q, E);
    }
    if constexpr (DELTA) {
      Strip E;
      Base::clear(E);
#pragma unroll
      for (int m = 0; m < tiles; ++m)
        if (m < keys && w < keys) {
          Tile above;
          Base::clear(above);
          if (m <= w) add_pairs(E[2 * m], E[2 * m + 1], s.Z, s.D, m);
          if (m >= w) add_pairs(above[0], above[1], s.D, s.Z, m);
#pragma unroll
          for (int n = 0; n < 2; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
              const int j = 16 * m + 8 * n + 2 * t + (i & 1), k = Base::row_of(i);
              const float other_rate = s.beta[j] * s.read_rate[j];
              const float x = j < k   ? rate[i >> 1] * (s.gradient_seen[k] - s.beta[j] * E[2 * m + n][i])
                              : j > k ? other_rate * (s.gradient_seen[j] - beta[i >> 1] * above[n][i])
                                      : 0.f;
              E[2 * m + n][i] = x * s.scale_k[j];
            }
        }
      operands(from_keys, back_k, E);
    }
    store_inputs(true, [&](Tile& x, int slab, int first, int shift) {
      add_features(x, from_queries, back_q, s.queries, first, shift, first_k, queries);
      if constexpr (DELTA)
        if (w < keys) add_features(x, from_keys, back_k, s.keys, first, shift, 0, keys);
      if (GENERAL && here.gradient_after.W) {
        const float one[2] = {1, 1};
        add_state_rows(x, s.D, beta, here.gradient_after.W, slab, first, shift);
        if (here.gradient_after.z) add_state_z(x, one, here.gradient_after.z, slab, first, shift);
      }
      if (GENERAL && DELTA && here.before.W) {
        const float minus[2] = {-rate[0], -rate[1]};
        add_state_rows(x, s.Z, minus, here.before.W, slab, first, shift);
        if (c.normalize_output) add_state_z(x, gs, here.before.z, slab, first, shift);
      }
    });
  }

  FWP_DEVICE void write_state_gradient() {
    const int token = thread_index();
    float *by_Z = s.written, *by_den = s.square, *by_seen = s.square + LT;  // the blocks have served
    if (token < LT) {
      const float rate = DELTA ? s.beta[token] * s.read_rate[token] : 0.f;
      by_Z[token] = -rate * s.scale_k[token];
      by_den[token] = s.gradient_den[token] * s.scale_q[token];
      by_seen[token] = rate * s.gradient_seen[token] * s.scale_k[token];
    }
    sync_block();
    Base::for_slabs([&](int slab) {
#pragma unroll 1
      for (int number = w; number < Base::feature_tiles(); number += tiles)
#pragma unroll 1
        for (int first = 0; first < c.d_value; first += value_block) {
          const typename Base::Tile16 tile[1] = {Base::feature_tile(number)};
          Values x[1];
          float xz[1][4];
          const bool z = c.normalize_output;
          Base::load_outer(x, xz, slab, tile, first, columns_of(c, here.gradient_after, here.head, 0, c.d_value));
          Base::add_outer(x, xz, s.queries, tile, s.G, first, s.scale_q, z ? by_den : nullptr, queries);
          if (DELTA) Base::add_outer(x, xz, s.keys, tile, s.Z, first, by_Z, z ? by_seen : nullptr, keys);
          Base::store_outer(x, xz, slab, tile, first, columns_of(c, here.gradient_before, here.head, 0, c.d_value));
        }
    });
  }
};

template <class P, int LT, bool DELTA, bool GENERAL> FWP_KERNEL(2 * LT, 1) backward_kernel(FWP_CONSTANT Call c) {
  if constexpr (walks<LT, GENERAL>) {
    const int head = block_index(), keys = pieces_of_keys(c, LT), every = c.checkpoints ? c.checkpoints : 1;
    int made = (keys - 1) / every;  // of this group the states stand there
#pragma unroll 1
    for (int n = pieces(c, LT) - 1; n >= 0; --n) {
      const int group = n / every;
      if (group < made) {
        made = group;
#pragma unroll 1
        for (int column = 0; column < c.d_value; column += slice_columns)
#pragma unroll 1
          for (int i = group * every; i < n; ++i) {
            const Piece p = keys_of(piece(c, LT, head, i));
            Forward<P, LT, DELTA, GENERAL>(c, p, column, slice_of(c, p.before, head, column),
                                           slice_of(c, p.after, head, column))
                .run();
            sync_block();
          }
      }
      Backward<P, LT, DELTA, GENERAL>(c, piece(c, LT, head, n)).run();
      sync_block();
    }
  } else {
    Backward<P, LT, DELTA, GENERAL>(c, whole(c, block_index())).run();
  }
}

template <class P, bool DELTA, bool GENERAL> const char* launch_backward(const Call& c, void* stream) {
  return with_tokens(c, [&](auto tokens) {
    constexpr int LT = decltype(tokens)::count;
    if constexpr (GENERAL && LT < smallest_general_block) {
      return "no instance";  // with_tokens does not come here
    } else {
      const auto kernel = backward_kernel<P, LT, DELTA, GENERAL>;
      return launch(kernel, c.batch * c.heads, 2 * LT, bytes_of<P>(c, true), static_cast<Stream>(stream), c);
    }
  });
}

}  // namespace fwp::gpu
