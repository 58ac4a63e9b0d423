// The backward of a sentence of up to 64 tokens in one launch: a block has a head. P, A, T and what was written are made
// again; then gradients of features are staged 64 columns at a time, and a thread takes those of a row back to x.
#pragma once

#include "short.cuh"

namespace fwp::gpu {

template <int ROWS, bool CORRECTS, bool DECAYS> struct ShortBackward : Short<ROWS, CORRECTS, DECAYS> {
  using Base = Short<ROWS, CORRECTS, DECAYS>;
  using Base::c, Base::thread, Base::lane, Base::warp, Base::g, Base::t, Base::row, Base::x, Base::phi, Base::of_q,
      Base::of_k, Base::beta, Base::keep, Base::tiles, Base::square_ld;
  using typename Base::Square;
  static constexpr bool gated = DECAYS && !CORRECTS;  // P is made of what keys are written with, too
  static constexpr int plane = ROWS * tile_ld, gradient_ld = ROWS + 1;
  uint16_t *values, *e,
      *inverse;  // values and gradients of outputs, later of features; P, later its gradient; T, later
  // the gradient of A
  float *norm_q, *norm_k, *factor_q, *factor_k;  // by what features, and the staged gradients of x, are multiplied
  float *sums, *gains, *kept;  // for each key

  FWP_BOTH static int lay(ShortBackward* s, char* base, const Call& c) {
    int used = 0;
    const auto take = [&](auto*& pointer, int bytes) {
      pointer = reinterpret_cast<std::remove_reference_t<decltype(pointer)>>(base + used);
      used += bytes;
    };
    uint16_t* unused;
    float* none;
    take(s ? s->x : unused, is_dpfp(c) ? 2 * 2 * ROWS * x_ld(c) : 0), take(s ? s->phi : unused, 2 * 2 * plane);
    take(s ? s->values : unused, 2 * 2 * plane), take(s ? s->e : unused, 2 * plane);
    take(s ? s->inverse : unused, CORRECTS ? 2 * plane : 0);
    Base::lay_vectors(s, take);
    take(s ? s->norm_q : none, 4 * ROWS), take(s ? s->norm_k : none, 4 * ROWS);
    take(s ? s->factor_q : none, 4 * ROWS), take(s ? s->factor_k : none, 4 * ROWS);
    take(s ? s->sums : none, 4 * ROWS), take(s ? s->gains : none, 4 * ROWS);
    take(s ? s->kept : none, DECAYS ? 4 * ROWS : 0);
    return used;
  }
  FWP_DEVICE ShortBackward(const Call& call, int head) : Base(call, head) {
    lay(this, shared_memory(lay(nullptr, nullptr, call)), call);
  }
  FWP_DEVICE int token(int i) const { return row + g + 8 * (i / 2); }
  FWP_DEVICE int key(int n, int i) const { return 8 * n + 2 * t + i % 2; }
  template <class F> static FWP_DEVICE void each(F f) {
    FWP_UNROLL (int n = 0; n < 2 * tiles; ++n)
      FWP_UNROLL (int i = 0; i < 4; ++i) f(n, i);
  }

  FWP_DEVICE void run() const {
    this->start_inputs();
    this->load_strengths();
    copies_arrived();
    this->scale_inputs();
    sync_block();
    Square p, a;  // without decay
    clear(p);
    if constexpr (CORRECTS) clear(a);
    float norm[2], rate[2], key_norm[2];
    read(p, a, norm, rate, key_norm);
    const float p_power = put_weights(p, norm);
    Square h, l;  // gradients of P, and of L
    clear(h);
    if constexpr (CORRECTS) clear(l);
    float gain[2] = {};  // dR V
    values_back(h, l, gain, p_power);
    uint32_t E[tiles][4], A[CORRECTS ? tiles : 1][4];
    float of_q_mean[2], of_k_mean[2];
    pairs_back(p, a, h, l, norm, rate, key_norm, gain, E, A, of_q_mean, of_k_mean);
    features_back(E, A, of_q_mean, of_k_mean);
  }

  // P and A, before decay; what denominators are, inverted; rates of keys, and their denominators; T.
  FWP_DEVICE void read(Square& p, Square& a, float (&norm)[2], float (&rate)[2], float (&key_norm)[2]) const {
    float sum_q[4] = {}, sum_k[4] = {};
    this->meet(p, a, sum_q, sum_k);
    float of_query[2], of_key[2];
    FWP_UNROLL (int r = 0; r < 2; ++r) {
      const int own = row + g + 8 * r;
      of_query[r] = this->norm_of(of_q[own], sum_q[2 * r]), of_key[r] = this->norm_of(of_k[own], sum_k[2 * r]);
      if (t == 0) norm_q[own] = of_query[r], norm_k[own] = of_key[r];
    }
    sync_block();
    each([&](int n, int i) {
      const int s = key(n, i);
      p[n][i] = c.causal && s > token(i) ? 0.f : p[n][i] * of_query[i / 2] * norm_k[s];
      if constexpr (CORRECTS) a[n][i] = s < token(i) ? a[n][i] * of_key[i / 2] * norm_k[s] : 0.f;
    });
    norm[0] = norm[1] = 1;
    if (c.normalize_output) {
      float sum[2] = {};
      each_weight([&](int n, int i, float d) { sum[i / 2] += p[n][i] * d; });
      sum_of_four(sum);
      FWP_UNROLL (int r = 0; r < 2; ++r) norm[r] = inverse_of(sum[r] + c.eps);
    }
    if constexpr (CORRECTS) {
      Square decayed;
      float found[2] = {};
      each([&](int n, int i) { decayed[n][i] = a[n][i]; });
      if constexpr (DECAYS) this->each_decay([&](int n, int i, float d) { decayed[n][i] *= d; });
      each([&](int n, int i) { found[i / 2] += decayed[n][i]; });
      sum_of_four(found);
      FWP_UNROLL (int r = 0; r < 2; ++r) {
        key_norm[r] = c.normalize_output ? inverse_of(found[r] + c.eps) : 1.f;
        rate[r] = beta[row + g + 8 * r] * key_norm[r];
      }
      this->invert(decayed, rate, inverse, e, reinterpret_cast<float*>(values));
    }
  }
  // Calls f(n, i, by what P is multiplied before it meets what was written).
  template <class F> FWP_DEVICE void each_weight(F f) const {
    if constexpr (!DECAYS) each([&](int n, int i) { f(n, i, 1.f); });
    else this->each_read_decay([&](int n, int i, float d) { f(n, i, gated ? d * beta[key(n, i)] : d); });
  }
  // P over its denominators to a tile; returns its power, by which gradients of what was written stay in range.
  FWP_DEVICE float put_weights(const Square& p, const float (&norm)[2]) const {
    Square y;
    clear(y);
    each_weight([&](int n, int i, float d) { y[n][i] = p[n][i] * d * norm[i / 2]; });
    float largest = 0;
    each([&](int n, int i) { largest = larger(largest, absolute(y[n][i])); });
    const float power = this->shared_power(largest, -1);
    each([&](int n, int i) { y[n][i] *= power; });
    this->put(e, tile_ld, y);
    sync_block();
    return power;
  }

  // Gradients of values, by 64 columns; h = G U^T and l = dR U^T.
  FWP_DEVICE void values_back(Square& h, Square& l, float (&gain)[2], float p_power) const {
    uint16_t *const v = values, *const grad = values + plane;
    const int last = this->last_tile(), begin = c.causal ? warp : 0;
    float unit = 1;
    FWP_ROLLED (int first = 0; first < c.d_value; first += chunk) {
      this->start_rows(v, tile_ld, c.v, true, first, c.d_value);
      this->start_rows(grad, tile_ld, c.grad_out, false, first, c.d_value);
      copies_arrived();
      const float v_unit = undone(this->scale_columns(v, CORRECTS ? beta : nullptr));
      sync_block();
      const float g_unit = undone(this->scale_columns(grad, nullptr)), before = unit;
      unit = v_unit * g_unit;
      sync_block();
      if (first > 0)
        each([&](int n, int i) {
          h[n][i] *= before / unit;
          if constexpr (CORRECTS) l[n][i] *= before / unit;
        });
      Strip<8> u;
      if constexpr (CORRECTS) {
        clear(u);
        FWP_ROLLED (int k = 0; k <= warp; ++k) {
          uint32_t A[4];
          this->left(A, inverse, square_ld, row, 16 * k);
          this->add_row(u, A, v, 16 * k);
        }
        sync_block();
        this->put(v, tile_ld, u);
        sync_block();
      }
      FWP_ROLLED (int k = 0; k < chunk; k += 16) {
        uint32_t A[4];
        this->left(A, grad, tile_ld, row, k);
        meet_row(h, A, v, k, last);
      }
      clear(u);
      FWP_ROLLED (int m = begin; m < tiles; ++m) {
        uint32_t A[4];
        this->left_turned(A, e, tile_ld, row, 16 * m);
        this->add_row(u, A, grad, 16 * m);
      }
      const float back = g_unit * undone(p_power);
      float by[2] = {back, back};
      if constexpr (CORRECTS) {
        this->put(phi, tile_ld, u);
        sync_block();
        clear(u);
        FWP_ROLLED (int m = warp; m < tiles; ++m) {
          uint32_t A[4];
          this->left_turned(A, inverse, square_ld, row, 16 * m);
          this->add_row(u, A, phi, 16 * m);
        }
        FWP_UNROLL (int k = 0; k < 4; ++k) {
          uint32_t A[4];
          pack_operand(A, u[2 * k], u[2 * k + 1]);
          meet_row(l, A, v, 16 * k, warp);
        }
        FWP_UNROLL (int r = 0; r < 2; ++r) {
          gain[r] += back * products(u, r, first);
          by[r] *= beta[row + g + 8 * r];
        }
      }
      this->store_columns(c.grad_v, phi + plane, u, by, c.sources, first);
      sync_block();
    }
    each([&](int n, int i) {
      h[n][i] *= unit;
      if constexpr (CORRECTS) l[n][i] *= -unit * undone(p_power);
    });
  }
  // strip += A B^T over 16 columns from k on, of tiles up to `last`
  FWP_DEVICE void meet_row(Square& strip, const uint32_t (&A)[4], const uint16_t* b, int k, int last) const {
    FWP_UNROLL (int n = 0; n < tiles; ++n) {
      if (n > last) continue;
      uint32_t B[4];
      this->right_turned(B, b, tile_ld, k, 16 * n);
      this->add(strip, 2 * n, A, B);
    }
  }
  // This lane's part of the product of own row r of u with 64 columns of values.
  FWP_DEVICE float products(const Strip<8>& u, int r, int first) const {
    const int own = row + g + 8 * r;
    float sum = 0;
    if (!this->is_there(own, true)) return 0;
    FWP_UNROLL (int n = 0; n < 8; ++n) {
      const int column = first + 8 * n + 2 * t;
      if (column >= c.d_value) continue;
      const Float2 y = load_two(c.type, c.v.data, this->offset(c.v, own, c.sources) + column);
      sum += u[n][2 * r] * y.x + u[n][2 * r + 1] * y.y;
    }
    return sum;
  }

  // From the gradients h of P's product and l of L, those of the products of features: as operands, and in tiles.
  FWP_DEVICE void pairs_back(Square& p, Square& a, Square& h, Square& l, const float (&norm)[2], const float (&rate)[2],
                             const float (&key_norm)[2], float (&gain)[2], uint32_t (&E)[tiles][4],
                             uint32_t (&A)[CORRECTS ? tiles : 1][4], float (&q_mean)[2], float (&k_mean)[2]) const {
    float product[2] = {};
    if (c.normalize_output) {
      each_weight([&](int n, int i, float d) { product[i / 2] += p[n][i] * d * h[n][i]; });
      sum_of_four(product);
    }
    // Where features are not negative and products of them are 0, nothing goes back to inputs through any of them. What
    // tiny denominators make of such pairs shall not use up the range of halves.
    const bool dead_at_0 = is_dpfp(c) || c.map == Map::relu;
    each([&](int n, int i) {
      const bool none = (c.causal && key(n, i) > token(i)) || (dead_at_0 && p[n][i] == 0);
      h[n][i] = none ? 0.f : (h[n][i] - product[i / 2] * norm[i / 2]) * norm[i / 2];
    });
    if constexpr (CORRECTS) {
      Square weight;  // decay
      each([&](int n, int i) { weight[n][i] = 1; });
      if constexpr (DECAYS) this->each_decay([&](int n, int i, float d) { weight[n][i] = d; });
      float rates[2] = {}, norms[2];
      each([&](int n, int i) {
        if (key(n, i) >= token(i)) l[n][i] = 0;
        rates[i / 2] += l[n][i] * a[n][i] * weight[n][i];
      });
      sum_of_four(rates), sum_of_four(gain);
      FWP_UNROLL (int r = 0; r < 2; ++r) {
        norms[r] = c.normalize_output ? -rates[r] * rate[r] * key_norm[r] : 0.f;
        if (t == 0) gains[row + g + 8 * r] = gain[r] + rates[r] * key_norm[r];
      }
      each([&](int n, int i) { l[n][i] = key(n, i) < token(i) ? l[n][i] * rate[i / 2] + norms[i / 2] : 0.f; });
    }
    if constexpr (DECAYS) {
      decays_back(p, a, h, l);
      if constexpr (CORRECTS) this->each_decay([&](int n, int i, float d) { l[n][i] *= d; });
      this->each_read_decay([&](int n, int i, float d) { h[n][i] *= d; });  // above the diagonal is 0
    }
    // Where features are normalised, what the products of gradients with features are; and gradients of strengths.
    float key_part[2] = {};
    q_mean[0] = q_mean[1] = 0;
    each([&](int n, int i) {
      q_mean[i / 2] += h[n][i] * p[n][i] * (gated ? beta[key(n, i)] : 1.f);
      if constexpr (CORRECTS) key_part[i / 2] += l[n][i] * a[n][i];
    });
    sum_of_four(q_mean), sum_of_four(key_part);
    if (c.normalize_features || gated) sum_columns(p, a, h, l);
    if (gated) each([&](int n, int i) { h[n][i] *= beta[key(n, i)]; });
    put_strengths();
    FWP_UNROLL (int r = 0; r < 2; ++r) {
      const int own = row + g + 8 * r;
      if (!c.normalize_features) q_mean[r] = k_mean[r] = 0;
      else k_mean[r] = key_part[r] + sums[own] * (gated ? beta[own] : 1.f);
    }
    // dQ = E K, with a power for each row
    float size[2] = {}, largest = 0;
    each([&](int n, int i) {
      const float y = absolute(h[n][i] * norm_k[key(n, i)]);
      size[i / 2] += y;
      largest = larger(largest, absolute(h[n][i] * norm_q[token(i)]));
      if constexpr (CORRECTS)
        largest = larger(largest, larger(absolute(l[n][i] * norm_k[key(n, i)]), absolute(l[n][i] * norm_k[token(i)])));
    });
    sum_of_four(size);
    float power[2];
    FWP_UNROLL (int r = 0; r < 2; ++r) {
      power[r] = power_for(size[r], 11);
      const int own = row + g + 8 * r;
      q_mean[r] *= power[r];
      if (t == 0) factor_q[own] = factor(norm_q[own], of_q[own], power[r]);
    }
    FWP_UNROLL (int k = 0; k < tiles; ++k) {
      float y[2][4];
      FWP_UNROLL (int n = 0; n < 2; ++n)
        FWP_UNROLL (int i = 0; i < 4; ++i) y[n][i] = h[2 * k + n][i] * norm_k[key(2 * k + n, i)] * power[i / 2];
      pack_operand(E[k], y[0], y[1]);
    }
    // dK = E^T Q + (dA + dA^T) K, with one power
    const float of_all = this->shared_power(largest, 4);
    FWP_UNROLL (int r = 0; r < 2; ++r) {
      const int own = row + g + 8 * r;
      k_mean[r] *= of_all;
      if (t == 0) factor_k[own] = factor(norm_k[own], of_k[own], of_all);
    }
    each([&](int n, int i) { h[n][i] *= norm_q[token(i)] * of_all; });
    this->put(e, tile_ld, h);
    if constexpr (CORRECTS) {
      FWP_UNROLL (int k = 0; k < tiles; ++k) {
        float y[2][4];
        FWP_UNROLL (int n = 0; n < 2; ++n)
          FWP_UNROLL (int i = 0; i < 4; ++i) y[n][i] = l[2 * k + n][i] * norm_k[key(2 * k + n, i)] * of_all;
        pack_operand(A[k], y[0], y[1]);
      }
      each([&](int n, int i) { l[n][i] *= norm_k[token(i)] * of_all; });
      this->put(inverse, tile_ld, l);
    }
  }
  // By what the staged gradients of x are multiplied: without the powers of x, and of the products.
  FWP_DEVICE float factor(float norm, float of, float power) const {
    return of == 0 ? 0.f : norm / (is_dpfp(c) ? square_root(of) : of) * undone(power);
  }
  // sums = the columns' sums of E P, with decay but not with what keys are written with, and of dA A.
  FWP_DEVICE void sum_columns(const Square& p, const Square& a, const Square& h, const Square& l) const {
    float* const parts = reinterpret_cast<float*>(values);
    FWP_UNROLL (int n = 0; n < 2 * tiles; ++n)
      FWP_UNROLL (int i = 0; i < 2; ++i) {
        float y = h[n][i] * p[n][i] + h[n][i + 2] * p[n][i + 2];
        if constexpr (CORRECTS) y += l[n][i] * a[n][i] + l[n][i + 2] * a[n][i + 2];
        FWP_UNROLL (int mask = 4; mask < 32; mask *= 2) y += shuffle_xor(y, mask);
        if (g == 0) parts[warp * ROWS + key(n, i)] = y;
      }
    sync_block();
    if (thread < ROWS) {
      float y = 0;
      FWP_UNROLL (int w = 0; w < tiles; ++w) y += parts[w * ROWS + thread];
      sums[thread] = y;
    }
  }
  // The gradients of what keys keep of earlier writes, to `kept` (decay.cuh), from those of all D.
  FWP_DEVICE void decays_back(const Square& p, const Square& a, const Square& h, const Square& l) const {
    float* const M = reinterpret_cast<float*>(phi);
    each([&](int n, int i) {
      float y = h[n][i] * p[n][i] * (gated ? beta[key(n, i)] : 1.f);
      if constexpr (CORRECTS)
        if (c.causal) y += l[n][i] * a[n][i];
      M[token(i) * gradient_ld + key(n, i)] = y;
    });
    sync_block();
    if (!c.causal) {  // all queries read at the end
      float sum = 0;
      if (thread < ROWS)
        FWP_ROLLED (int r = 0; r < ROWS; ++r) sum += M[r * gradient_ld + thread];
      sync_block();
      each([&](int n, int i) { M[token(i) * gradient_ld + key(n, i)] = CORRECTS ? l[n][i] * a[n][i] : 0.f; });
      sync_block();
      if (thread < ROWS) M[(ROWS - 1) * gradient_ld + thread] += sum;
    }
    if (thread < ROWS) {
      float later = 0, left = 1;
      FWP_ROLLED (int r = ROWS - 1; r > thread; --r) {
        later = M[r * gradient_ld + thread] + (r + 1 < ROWS ? keep[r + 1] * later : 0.f);
        M[r * gradient_ld + thread] = later;
      }
      FWP_ROLLED (int r = thread + 1; r < ROWS; ++r) {
        M[r * gradient_ld + thread] *= left;
        left *= keep[r];
      }
    }
    sync_block();
    if (thread < ROWS) {
      float sum = 0;
      FWP_ROLLED (int s = 0; s < thread; ++s) sum += M[thread * gradient_ld + s];
      kept[thread] = sum;
    }
    sync_block();
  }
  FWP_DEVICE void put_strengths() const {
    sync_block();
    if (!takes_beta(c.rule) || thread >= c.sources || thread >= ROWS) return;
    const bool pad = this->is_pad(thread);
    const float left = DECAYS ? kept[thread] : 0.f, y = CORRECTS ? gains[thread] : sums[thread] - left;
    c.grad_beta.data[this->offset(c.grad_beta, thread, c.sources)] = pad ? 0.f : y;
    if (takes_alpha(c.rule)) c.grad_alpha.data[this->offset(c.grad_alpha, thread, c.sources)] = pad ? 0.f : left;
  }

  // ---- features ----

  // What a thread has of the neighbours before a group of 8 inputs: gradients of r of both signs, and of the last x.
  struct Left {
    float r[2][2] = {}, last[2] = {};
  };
  FWP_DEVICE void features_back(const uint32_t (&E)[tiles][4], const uint32_t (&A)[CORRECTS ? tiles : 1][4],
                                const float (&q_mean)[2], const float (&k_mean)[2]) const {
    const int last = this->last_tile(), begin = c.causal ? warp : 0;
    uint16_t* const keys = phi + plane;
    Left left;
    FWP_ROLLED (int s = slabs_of(c) - 1; s >= 0; --s) {
      this->make(s);
      sync_block();
      Strip<8> sum;
      start(sum, q_mean);
      FWP_UNROLL (int m = 0; m < tiles; ++m)
        if (m <= last) this->add_row(sum, E[m], keys, 16 * m);
      this->put(values, tile_ld, sum);
      start(sum, k_mean);
      FWP_ROLLED (int m = begin; m < tiles; ++m) {
        uint32_t B[4];
        this->left_turned(B, e, tile_ld, row, 16 * m);
        this->add_row(sum, B, phi, 16 * m);
      }
      if constexpr (CORRECTS) {
        FWP_UNROLL (int m = 0; m < tiles; ++m)
          if (m <= warp) this->add_row(sum, A[m], keys, 16 * m);
        FWP_ROLLED (int m = warp; m < tiles; ++m) {
          uint32_t B[4];
          this->left_turned(B, inverse, tile_ld, row, 16 * m);
          this->add_row(sum, B, keys, 16 * m);
        }
      }
      this->put(values + plane, tile_ld, sum);
      sync_block();
      if (is_dpfp(c)) back_dpfp(s, left);
      else back_function(s);
    }
  }
  static FWP_DEVICE void start(Strip<8>& sum, const float (&mean)[2]) {
    FWP_UNROLL (int n = 0; n < 8; ++n)
      FWP_UNROLL (int i = 0; i < 4; ++i) sum[n][i] = -mean[i / 2];
  }
  // The row of this thread: of queries, and then of keys.
  struct Row {
    bool key, there;
    int token, length;
    float by;  // 0 where nothing goes back
  };
  FWP_DEVICE Row own_row() const {
    const bool key = thread >= ROWS;
    const int token = thread % ROWS, length = key ? c.sources : c.targets;
    return {key, token < length, token, length, (key ? factor_k : factor_q)[token]};
  }
  FWP_DEVICE void store_eight(const Row& own, int column, const float (&y)[8]) const {
    if (!own.there) return;
    const Rows<void>& to = own.key ? c.grad_k : c.grad_q;
    Eight z;
    FWP_UNROLL (int n = 0; n < 4; ++n)
      z.w[n] = pack_two(c.type, this->times(own.by, y[2 * n]), this->times(own.by, y[2 * n + 1]));
    *reinterpret_cast<Eight*>(static_cast<uint16_t*>(to.data) + this->offset(to, own.token, own.length) + column) = z;
  }
  FWP_DEVICE void back_function(int s) const {
    const Row own = own_row();
    const bool there = this->is_there(own.token, own.key);
    FWP_ROLLED (int i = 0; i < chunk && chunk * s + i < c.d_key; i += 8) {
      float y[8], d[8];
      const Rows<const void>& from = own.key ? c.k : c.q;
      unpack(c.type, there ? this->at(from, own.token, own.length, chunk * s + i) : Eight{}, y);
      unpack(Type::float16, eight(values + thread * tile_ld + i), d);
      FWP_UNROLL (int n = 0; n < 8; ++n) y[n] = function_back(c.map, d[n], function_of(c.map, y[n]));
      store_eight(own, chunk * s + i, y);
    }
  }
  // Slabs, and groups in them, come from the last one to the first, so that a group has what later ones leave for it; the
  // last inputs of all get what the first ones leave.
  FWP_DEVICE void back_dpfp(int s, Left& left) const {
    const Row own = own_row();
    const bool pair = c.nu == 2;
    FWP_ROLLED (int i = pair ? 1 : 3; i >= 0; --i) {
      const int group = (pair ? 2 : 4) * s + i;
      if (group >= groups_of(c)) continue;
      back_group(own, group, values + thread * tile_ld + (pair ? 32 : 16) * i, pair, left);
    }
  }
  template <bool BELOW>
  static FWP_DEVICE void back_sign(float (&dr)[10], float (&r)[10], const uint16_t* d, const Eight& here,
                                   uint32_t before, bool pair) {
    const uint32_t b = Base::template clamp<BELOW>(before);
    r[0] = first_half(b), r[1] = second_half(b);
    FWP_UNROLL (int n = 0; n < 4; ++n) {
      const uint32_t w = Base::template clamp<BELOW>(here.w[n]);
      r[2 * n + 2] = first_half(w), r[2 * n + 3] = second_half(w);
    }
    float y[8];
    unpack(Type::float16, eight(static_cast<const void*>(d)), y);
    FWP_UNROLL (int n = 0; n < 8; ++n) dr[n + 2] += y[n] * r[n + 1], dr[n + 1] += y[n] * r[n + 2];
    if (!pair) return;
    unpack(Type::float16, eight(static_cast<const void*>(d + 16)), y);
    FWP_UNROLL (int n = 0; n < 8; ++n) dr[n + 2] += y[n] * r[n], dr[n] += y[n] * r[n + 2];
  }
  FWP_DEVICE void back_group(const Row& own, int group, const uint16_t* d, bool pair, Left& left) const {
    const uint16_t* const from = this->row_of_x(thread) + 8 * group;
    const Eight here = eight(static_cast<const void*>(from));
    const uint32_t before = *reinterpret_cast<const uint32_t*>(from - 2);
    float r[2][10], dr[2][10] = {}, y[8];
    FWP_UNROLL (int h = 0; h < 2; ++h) dr[h][8] = left.r[h][0], dr[h][9] = left.r[h][1];
    back_sign<false>(dr[0], r[0], d, here, before, pair);
    back_sign<true>(dr[1], r[1], d + 8, here, before, pair);
    FWP_UNROLL (int n = 0; n < 8; ++n) y[n] = r[0][n + 2] != 0 ? dr[0][n + 2] : r[1][n + 2] != 0 ? dr[1][n + 2] : 0.f;
    if (group == groups_of(c) - 1) left.last[0] = y[6], left.last[1] = y[7];
    FWP_UNROLL (int h = 0; h < 2; ++h)
      FWP_UNROLL (int n = 0; n < 2; ++n) {
        left.r[h][n] = dr[h][n];
        if (group == 0 && r[h][n] != 0) left.last[n] -= dr[h][n];  // of -x
      }
    if (group == 0 && groups_of(c) == 1) y[6] = left.last[0], y[7] = left.last[1];
    store_eight(own, 8 * group, y);
    if (group > 0 || groups_of(c) == 1 || !own.there) return;
    const Rows<void>& to = own.key ? c.grad_k : c.grad_q;
    uint16_t* const end = static_cast<uint16_t*>(to.data) + this->offset(to, own.token, own.length) + c.d_key - 2;
    *reinterpret_cast<uint32_t*>(end) =
        pack_two(c.type, this->times(own.by, left.last[0]), this->times(own.by, left.last[1]));
  }
};

template <int ROWS, bool CORRECTS, bool DECAYS>
FWP_KERNEL(2 * ROWS, ROWS == 32 ? 5
                     : CORRECTS ? 2
                                : 3)
short_backward_kernel(FWP_CONSTANT Call c) {
  ShortBackward<ROWS, CORRECTS, DECAYS>(c, block_index()).run();
}

}  // namespace fwp::gpu
