// The backward pass of a sentence of up to 64 tokens in one launch. A block processes a head. P, A, T and U are
// computed again. Then gradients of features are put in shared memory, 64 columns at a time, and each thread computes
// from those of a row the gradient of x.
#pragma once

#include "short.cuh"

namespace fwp::gpu {

template <int ROWS, bool CORRECTS, bool DECAYS, bool DPFP> struct ShortBackward : Short<ROWS, CORRECTS, DECAYS, DPFP> {
  using Base = Short<ROWS, CORRECTS, DECAYS, DPFP>;
  using Base::c, Base::thread, Base::lane, Base::warp, Base::g, Base::t, Base::row, Base::x, Base::phi, Base::of_q,
      Base::of_k, Base::beta, Base::keep, Base::tiles, Base::square_ld, Base::weighs;
  using typename Base::Square;
  static constexpr int plane = ROWS * tile_ld, gradient_ld = ROWS + 1;
  uint16_t* values;  // values and gradients of outputs; later gradients of features
  uint16_t* e;  // P, later its gradient
  uint16_t* inverse;  // T, later the gradient of A
  float *norm_q, *norm_k, *factor_q, *factor_k;  // factors of features, and of the gradients of x
  float *sums, *gains, *kept;  // for each key

  // The warp's rows of products of all queries and keys, and numbers of these rows.
  struct Pairs {
    Square P, A, D;  // P and A without decay
    Square dP, dL;  // first G U^T and -dR U^T; the gradients of P and L; in the end those of Q K^T and K K^T
    float norm[2], rate[2], key_norm[2];  // inverses of denominators, rates, inverses of the rates' denominators
    float gain[2] = {};  // dR V
  };
  // The gradients of Q K^T and K K^T as left operands; the parts of the gradients of features that are equal for all
  // features of a row.
  struct Operands {
    uint32_t E[tiles][4], A[CORRECTS ? tiles : 1][4];
    float q_mean[2] = {}, k_mean[2] = {};
  };

  FWP_BOTH static int lay(ShortBackward* s, char* base, const Call& c) {
    Parts take{base};
    uint16_t* unused;
    float* none;
    take(s ? s->phi : unused, 2 * 2 * plane), take(s ? s->values : unused, 2 * 2 * plane),
        take(s ? s->e : unused, 2 * plane);
    take(s ? s->inverse : unused, CORRECTS ? 2 * plane : 0);
    Base::lay_vectors(s, take);
    take(s ? s->norm_q : none, 4 * ROWS), take(s ? s->norm_k : none, 4 * ROWS);
    take(s ? s->factor_q : none, 4 * ROWS), take(s ? s->factor_k : none, 4 * ROWS);
    take(s ? s->sums : none, 4 * ROWS), take(s ? s->gains : none, 4 * ROWS);
    take(s ? s->kept : none, DECAYS ? 4 * ROWS : 0);
    // The last one, see short_forward.cuh; then as much for the gradients of x, if they are added up.
    take(s ? s->x : unused, DPFP ? (is_added(c) ? 2 : 1) * 2 * 2 * ROWS * x_ld(c) : 0);
    return take.used;
  }
  FWP_DEVICE ShortBackward(const Call& call, int head) : Base(call, head) {
    lay(this, shared_memory(lay(nullptr, nullptr, call)), call);
    this->find_own_rows();
  }
  FWP_DEVICE int token(int i) const { return row + g + 8 * (i / 2); }
  FWP_DEVICE int key(int n, int i) const { return 8 * n + 2 * t + i % 2; }
  template <class F> static FWP_DEVICE void each(F f) {
    FWP_UNROLL (int n = 0; n < 2 * tiles; ++n)
      FWP_UNROLL (int i = 0; i < 4; ++i) f(n, i);
  }

  FWP_DEVICE void run() const {
    this->start_inputs();
    this->load_gates();
    copies_arrived();
    sync_block();
    this->scale_inputs();
    Pairs pairs;
    clear(pairs.P), clear(pairs.dP);
    if constexpr (CORRECTS) clear(pairs.A), clear(pairs.dL);
    if constexpr (DECAYS) {
      clear(pairs.D);
      this->each_decay([&](int n, int i, float d) { pairs.D[n][i] = d; });
    }
    pair_products(pairs);
    const float p_power = put_weights(pairs);
    values_back(pairs, p_power);
    denominators_back(pairs);
    if constexpr (CORRECTS) rates_back(pairs);
    if constexpr (DECAYS) decays_back(pairs);
    Operands operands;
    features_mean(pairs, operands);
    put_gates();
    pack(pairs, operands);
    features_back(operands);
  }

  // Computes P and A, before decay; the inverses of denominators; the rates of keys and the inverses of their
  // denominators; and T.
  FWP_DEVICE void pair_products(Pairs& x) const {
    float sum_q[4] = {}, sum_k[4] = {};
    this->add_grams(x.P, x.A, sum_q, sum_k);
    float of_query[2], of_key[2];
    FWP_UNROLL (int r = 0; r < 2; ++r) {
      const int own = row + g + 8 * r;
      of_query[r] = this->norm_of(of_q[own], sum_q[2 * r]), of_key[r] = this->norm_of(of_k[own], sum_k[2 * r]);
      if (t == 0) norm_q[own] = of_query[r], norm_k[own] = of_key[r];
    }
    sync_block();
    each_key([&](int n, int i, float by) {
      x.P[n][i] *= of_query[i / 2] * by;
      if constexpr (CORRECTS) x.A[n][i] *= of_key[i / 2] * by;
    });
    if (c.causal) this->template mask<false>(x.P);
    if constexpr (CORRECTS) this->template mask<true>(x.A);
    x.norm[0] = x.norm[1] = 1;
    if (c.normalize_output) {
      float sum[2] = {};
      each_weight(x.D, [&](int n, int i, float d) { sum[i / 2] += x.P[n][i] * d; });
      sum_of_four(sum);
      FWP_UNROLL (int r = 0; r < 2; ++r) x.norm[r] = inverse_of(sum[r] + c.eps);
    }
    if constexpr (CORRECTS) {
      Square decayed;
      each([&](int n, int i) { decayed[n][i] = x.A[n][i] * (DECAYS ? x.D[n][i] : 1.f); });
      x.key_norm[0] = x.key_norm[1] = 1;
      if (c.normalize_output) {
        float sum[2] = {};
        each([&](int n, int i) { sum[i / 2] += decayed[n][i]; });
        sum_of_four(sum);
        FWP_UNROLL (int r = 0; r < 2; ++r) x.key_norm[r] = inverse_of(sum[r] + c.eps);
      }
      FWP_UNROLL (int r = 0; r < 2; ++r) x.rate[r] = beta[row + g + 8 * r] * x.key_norm[r];
      this->invert(decayed, x.rate, inverse, e, reinterpret_cast<float*>(values));
    }
  }
  // The two numbers of a vector for this lane's columns of strip n.
  FWP_DEVICE Float2 two(const float* x, int n) const { return *reinterpret_cast<const Float2*>(x + 8 * n + 2 * t); }
  // Calls f(n, i, the factor of P before it multiplies U): decay, and beta if the rule weighs writes.
  template <class F> FWP_DEVICE void each_weight(const Square& D, F f) const {
    each_read_decay(D, [&](int n, int i, float d) { f(n, i, weighs ? d * beta[key(n, i)] : d); });
  }
  // Calls f(n, i, the decay at which the query reads the key).
  template <class F> FWP_DEVICE void each_read_decay(const Square& D, F f) const {
    if (!DECAYS || c.causal) each([&](int n, int i) { f(n, i, DECAYS ? D[n][i] : 1.f); });
    else this->each_last_decay(f);
  }
  // Stores P, divided by its denominators, in a tile; returns its power of two, which keeps the gradient of U in range.
  FWP_DEVICE float put_weights(const Pairs& x) const {
    Square y;
    each_weight(x.D, [&](int n, int i, float d) { y[n][i] = x.P[n][i] * d * x.norm[i / 2]; });
    float largest = 0;
    each([&](int n, int i) { largest = larger(largest, absolute(y[n][i])); });
    const float power = this->shared_power(largest, -1);
    each([&](int n, int i) { y[n][i] *= power; });
    this->put(e, tile_ld, y);
    sync_block();
    return power;
  }

  // Computes the gradients of values, 64 columns at a time; dP = G U^T, dL = -dR U^T and the gains.
  FWP_DEVICE void values_back(Pairs& x, float p_power) const {
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
          x.dP[n][i] *= before / unit;
          if constexpr (CORRECTS) x.dL[n][i] *= before / unit;
        });
      Strip<8> u;
      if constexpr (CORRECTS) {
        clear(u);
        this->add_rows(u, inverse, square_ld, warp, v);
        sync_block();
        this->put(v, tile_ld, u);
        sync_block();
      }
      FWP_ROLLED (int k = 0; k < chunk; k += 16) {
        uint32_t A[4];
        load_matrices(A, grad + (row * tile_ld + this->in_tile) + k);
        add_gram_slice(x.dP, A, v, k, last);
      }
      clear(u);
      this->add_transposed(u, e, tile_ld, begin, tiles, grad);
      const float back = g_unit * undone(p_power);
      float by[2] = {back, back};
      if constexpr (CORRECTS) {
        this->put(phi, tile_ld, u);
        sync_block();
        clear(u);
        this->add_transposed(u, inverse, square_ld, warp, tiles, phi);
        FWP_UNROLL (int k = 0; k < 4; ++k) {
          uint32_t A[4];
          pack_operand(A, u[2 * k], u[2 * k + 1]);
          add_gram_slice(x.dL, A, v, 16 * k, warp);
        }
        FWP_UNROLL (int r = 0; r < 2; ++r) {
          x.gain[r] += back * products(u, r, first);
          by[r] *= beta[row + g + 8 * r];
        }
      }
      this->store_columns(c.grad_v, phi + plane, u, by, c.sources, first);
      sync_block();
    }
    each([&](int n, int i) {
      x.dP[n][i] *= unit;
      if constexpr (CORRECTS) x.dL[n][i] *= -unit * undone(p_power);
    });
  }
  // strip += A B^T over the 16 columns from k on, for the tiles of B up to `last`
  FWP_DEVICE void add_gram_slice(Square& strip, const uint32_t (&A)[4], const uint16_t* b, int k, int last) const {
    FWP_UNROLL (int n = 0; n < tiles; ++n) {
      if (n > last) continue;
      uint32_t B[4];
      this->right_transposed(B, b, tile_ld, k, 16 * n);
      this->add(strip, 2 * n, A, B);
    }
  }
  // This lane's part of the inner product of the warp's row r of u with 64 columns of values.
  FWP_DEVICE float products(const Strip<8>& u, int r, int first) const {
    const int own = row + g + 8 * r, columns = c.d_value - first - 2 * t;
    if (!this->is_there(own, true)) return 0;
    const uint16_t* const v =
        static_cast<const uint16_t*>(c.v.data) + this->offset(c.v, own, c.sources) + first + 2 * t;
    float sum = 0;
    FWP_UNROLL (int n = 0; n < 8; ++n) {
      if (8 * n >= columns) continue;
      const Float2 y = two_of(c.type, *reinterpret_cast<const uint32_t*>(v + 8 * n));
      sum += u[n][2 * r] * y.x + u[n][2 * r + 1] * y.y;
    }
    return sum;
  }

  // From dP = G U^T to the gradient of P, with decay.
  FWP_DEVICE void denominators_back(Pairs& x) const {
    float product[2] = {};
    if (c.normalize_output) {
      each_weight(x.D, [&](int n, int i, float d) { product[i / 2] += x.P[n][i] * d * x.dP[n][i]; });
      sum_of_four(product);
    }
    // If features are never negative, no gradient passes through a product that is 0 (../README.md). Such pairs are set
    // to 0, because with tiny denominators they would use up the range of halves.
    const float dead = DPFP || flat_at_zero(c.map) ? 0.f : float_of(0x7fc00000u);  // else NaN, which equals nothing
    each([&](int n, int i) {
      const float of = x.norm[i / 2];
      x.dP[n][i] = x.P[n][i] == dead ? 0.f : x.dP[n][i] * of - product[i / 2] * of * of;
    });
    if (c.causal) this->template mask<false>(x.dP);
  }
  // From the gradient of L to that of A, with decay; puts the gradients of write strengths in `gains`.
  FWP_DEVICE void rates_back(Pairs& x) const {
    float rates[2] = {}, norms[2];
    each([&](int n, int i) { rates[i / 2] += x.dL[n][i] * x.A[n][i] * (DECAYS ? x.D[n][i] : 1.f); });
    sum_of_four(rates), sum_of_four(x.gain);
    FWP_UNROLL (int r = 0; r < 2; ++r) {
      norms[r] = c.normalize_output ? -rates[r] * x.rate[r] * x.key_norm[r] : 0.f;
      if (t == 0) gains[row + g + 8 * r] = x.gain[r] + rates[r] * x.key_norm[r];
    }
    each([&](int n, int i) { x.dL[n][i] = x.dL[n][i] * x.rate[i / 2] + norms[i / 2]; });
    this->template mask<true>(x.dL);
  }
  // From the gradients with decay to those of Q K^T and K K^T (without beta, if the rule weighs writes); puts those of
  // keep in `kept`.
  FWP_DEVICE void decays_back(Pairs& x) const {
    keep_back(x);
    if constexpr (CORRECTS) each([&](int n, int i) { x.dL[n][i] *= x.D[n][i]; });
    each_read_decay(x.D, [&](int n, int i, float d) { x.dP[n][i] *= d; });
  }
  // Computes the inner products of features with their gradients, if features are normalised: all of q_mean, and the
  // part of k_mean in K K^T. Multiplies by beta if the rule weighs writes. Puts column sums in `sums`.
  FWP_DEVICE void features_mean(Pairs& x, Operands& to) const {
    if (c.normalize_features) {
      each([&](int n, int i) {
        to.q_mean[i / 2] += x.dP[n][i] * x.P[n][i] * (weighs ? beta[key(n, i)] : 1.f);
        if constexpr (CORRECTS) to.k_mean[i / 2] += x.dL[n][i] * x.A[n][i];
      });
      sum_of_four(to.q_mean), sum_of_four(to.k_mean);
    }
    if (c.normalize_features || weighs) sum_columns(x);
    if (weighs) each([&](int n, int i) { x.dP[n][i] *= beta[key(n, i)]; });
  }
  // Packs the gradients of Q K^T and K K^T as operands, and stores them in tiles, with their powers of two.
  FWP_DEVICE void pack(Pairs& x, Operands& to) const {
    float of_query[2], of_key[2];
    FWP_UNROLL (int r = 0; r < 2; ++r) {
      const int own = row + g + 8 * r;
      of_query[r] = norm_q[own], of_key[r] = norm_k[own];
      if (c.normalize_features) to.k_mean[r] += sums[own] * (weighs ? beta[own] : 1.f);
    }
    // dQ = E K, with a power for each row
    float size[2] = {}, most[2] = {}, largest = 0;
    each_key([&](int n, int i, float of) {
      size[i / 2] += absolute(x.dP[n][i] * of);
      most[i / 2] = larger(most[i / 2], absolute(x.dP[n][i]));
      if constexpr (CORRECTS)
        largest = larger(largest, absolute(x.dL[n][i]) * larger(absolute(of), absolute(of_key[i / 2])));
    });
    sum_of_four(size);
    float power[2];
    FWP_UNROLL (int r = 0; r < 2; ++r) {
      largest = larger(largest, most[r] * absolute(of_query[r]));
      power[r] = power_for(size[r], DPFP ? 10 : 11);
      to.q_mean[r] *= power[r];
      const int own = row + g + 8 * r;
      if (t == 0) factor_q[own] = factor(of_query[r], of_q[own], power[r]);
    }
    pack_rows(to.E, x.dP, power[0], power[1]);
    // dK = E^T Q + (dA + dA^T) K, with one power. Sums of four products with x, in back_group, stay in the range of
    // halves.
    const float of_all = this->shared_power(largest, DPFP && CORRECTS ? 3 : 4);
    FWP_UNROLL (int r = 0; r < 2; ++r) {
      const int own = row + g + 8 * r;
      to.k_mean[r] *= of_all;
      if (t == 0) factor_k[own] = factor(of_key[r], of_k[own], of_all);
      of_query[r] *= of_all, of_key[r] *= of_all;
    }
    each([&](int n, int i) { x.dP[n][i] *= of_query[i / 2]; });
    this->put(e, tile_ld, x.dP);
    if constexpr (CORRECTS) {
      pack_rows(to.A, x.dL, of_all, of_all);
      each([&](int n, int i) { x.dL[n][i] *= of_key[i / 2]; });
      this->put(inverse, tile_ld, x.dL);
    }
  }
  // Calls f(n, i, the factor of the key's features).
  template <class F> FWP_DEVICE void each_key(F f) const {
    FWP_UNROLL (int n = 0; n < 2 * tiles; ++n) {
      const Float2 of = two(norm_k, n);
      FWP_UNROLL (int i = 0; i < 4; ++i) f(n, i, i % 2 ? of.y : of.x);
    }
  }
  // Packs x, multiplied by the factors of keys and a power of two for each row, as left operands.
  FWP_DEVICE void pack_rows(uint32_t (&X)[tiles][4], const Square& x, float upper, float lower) const {
    FWP_UNROLL (int n = 0; n < 2 * tiles; ++n) {
      const Float2 of = two(norm_k, n);
      FWP_UNROLL (int r = 0; r < 2; ++r) {
        const float power = r ? lower : upper;
        X[n / 2][n % 2 * 2 + r] = pack_halves(x[n][2 * r] * of.x * power, x[n][2 * r + 1] * of.y * power);
      }
    }
  }
  // The factor that makes a gradient of x from a number in shared memory: it undoes the powers of two of x and of the
  // products.
  FWP_DEVICE float factor(float norm, float of, float power) const {
    return of == 0 ? 0.f : norm / (DPFP ? square_root(of) : of) * undone(power);
  }
  // sums = the column sums of E P, with decay but without beta, plus those of dA A.
  FWP_DEVICE void sum_columns(const Pairs& x) const {
    float* const parts = reinterpret_cast<float*>(values);
    FWP_UNROLL (int n = 0; n < 2 * tiles; ++n)
      FWP_UNROLL (int i = 0; i < 2; ++i) {
        float y = x.dP[n][i] * x.P[n][i] + x.dP[n][i + 2] * x.P[n][i + 2];
        if constexpr (CORRECTS) y += x.dL[n][i] * x.A[n][i] + x.dL[n][i + 2] * x.A[n][i + 2];
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
  // Computes the gradients of keep (decay.cuh), in `kept`, from those of all D.
  FWP_DEVICE void keep_back(const Pairs& x) const {
    float* const M = reinterpret_cast<float*>(phi);
    each([&](int n, int i) {
      float y = x.dP[n][i] * x.P[n][i] * (weighs ? beta[key(n, i)] : 1.f);
      if constexpr (CORRECTS)
        if (c.causal) y += x.dL[n][i] * x.A[n][i];
      M[token(i) * gradient_ld + key(n, i)] = y;
    });
    sync_block();
    if (!c.causal) {  // all queries read at the end
      float sum = 0;
      if (thread < ROWS)
        FWP_ROLLED (int r = 0; r < ROWS; ++r) sum += M[r * gradient_ld + thread];
      sync_block();
      each([&](int n, int i) { M[token(i) * gradient_ld + key(n, i)] = CORRECTS ? x.dL[n][i] * x.A[n][i] : 0.f; });
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
  FWP_DEVICE void put_gates() const {
    sync_block();
    if (thread >= c.sources || thread >= ROWS) return;
    const bool pad = this->is_pad(thread);
    const float left = DECAYS ? kept[thread] : 0.f;
    if (takes_beta(c.rule)) {
      const float y = beta_gradient(c.rule, CORRECTS ? gains[thread] : sums[thread], left);
      c.grad_beta.data[this->offset(c.grad_beta, thread, c.sources)] = pad ? 0.f : y;
    }
    if (takes_alpha(c.rule)) c.grad_alpha.data[this->offset(c.grad_alpha, thread, c.sources)] = pad ? 0.f : left;
  }

  // ---- features ----

  // The row of this thread, a query or a key; the address of its gradient, and the factor of the numbers in shared
  // memory.
  struct OwnRow {
    bool key, there;
    int token, length;
    void* to;
    int64_t at;
    float by;  // 0 if the gradient is 0
  };
  FWP_DEVICE OwnRow own_row() const {
    const bool key = thread >= ROWS;
    const int token = thread % ROWS, length = key ? c.sources : c.targets;
    const Rows<void>& to = key ? c.grad_k : c.grad_q;
    return {key,
            token < length,
            token,
            length,
            to.data,
            this->offset(to, token, length),
            (key ? factor_k : factor_q)[token]};
  }
  // Under DPFP with nu of 3 or more, whether slabs add up the gradients of x in shared memory, since several of them
  // contribute to each.
  static FWP_BOTH bool is_added(const Call& c) { return DPFP && c.nu > 2; }
  FWP_DEVICE uint16_t* added(int i) const { return this->own_x + 2 * ROWS * this->ld_x + i; }
  FWP_DEVICE void features_back(Operands& from) const {
    const int last = gpu::kept(this->last_tile()), begin = gpu::kept(c.causal ? warp : 0);
    uint16_t* const keys = phi + plane;
    sync_block();
    if constexpr (CORRECTS)  // dA + dA^T: at each place, one of them is 0
      FWP_UNROLL (int m = 0; m < tiles; ++m) {
        uint32_t B[4];
        this->left_transposed(B, inverse, tile_ld, row, 16 * m);
        FWP_UNROLL (int i = 0; i < 4; ++i) from.A[m][i] = add_halves(from.A[m][i], B[i]);
      }
    const OwnRow own = own_row();
    uint32_t left = 0;  // gradients of the last two x of a group that follow from the next group
    const bool is_added = this->is_added(c);
    if (is_added)
      FWP_ROLLED (int i = -before_x(c); i < c.d_key; i += 8) put_eight(added(i), {});
    FWP_ROLLED (int s = this->slabs() - 1; s >= 0; --s) {
      this->make(s, this->columns(s));
      sync_block();
      Strip<8> sum;
      start(sum, from.q_mean);
      FWP_UNROLL (int m = 0; m < tiles; ++m)
        if (m == 0 || m <= last) this->add_row(sum, from.E[m], keys, 16 * m);
      this->put(values, tile_ld, sum);
      start(sum, from.k_mean);
      this->add_transposed(sum, e, tile_ld, begin, tiles, phi);
      if constexpr (CORRECTS)
        FWP_UNROLL (int m = 0; m < tiles; ++m) this->add_row(sum, from.A[m], keys, 16 * m);
      this->put(values + plane, tile_ld, sum);
      sync_block();
      if constexpr (DPFP) back_dpfp(own, s, left);
      else back_function(own, s);
      if (is_added) add_dpfp(s);
    }
    if (is_added) put_added(own);
    else if constexpr (DPFP) {  // x_{-1} and x_{-2} are the last inputs with the opposite sign
      left = add_halves(word(this->own_x + c.d_key - 2), left ^ 0x80008000u);
      const float first = own.by * first_half(left), second = own.by * second_half(left);
      if (own.there) word(static_cast<uint16_t*>(own.to) + own.at + c.d_key - 2) = pack_two(c.x_type, first, second);
    }
  }
  static FWP_DEVICE void start(Strip<8>& sum, const float (&mean)[2]) {
    FWP_UNROLL (int n = 0; n < 8; ++n)
      FWP_UNROLL (int i = 0; i < 4; ++i) sum[n][i] = -mean[i / 2];
  }
  FWP_DEVICE void store_eight(const OwnRow& own, int column, const float (&y)[8]) const {
    if (!own.there) return;
    const int64_t at = own.at + column;
    if (!DPFP && c.x_type == Type::float32) store_floats(static_cast<float*>(own.to) + at, y, own.by);
    else put_eight(static_cast<uint16_t*>(own.to) + at, packed(c.x_type, y, own.by));
  }
  FWP_DEVICE void back_function(const OwnRow& own, int s) const {
    FWP_ROLLED (int i = 0; i < chunk && chunk * s + i < c.d_key; i += 8) {
      float d[8], f[8];
      unpack(Type::float16, eight(values + thread * tile_ld + i), d);
      unpack(Type::float16, eight(this->own_phi + i), f);
      if (c.map != Map::identity)
        FWP_UNROLL (int n = 0; n < 8; ++n) d[n] = function_back(c.map, d[n], of_q[thread] * f[n]);
      store_eight(own, chunk * s + i, d);
    }
    sync_block();  // the next features replace these
  }
  // The power of two of gradients that are added up: sums of 2 nu products, as those of four products, stay in the range
  // of halves.
  FWP_DEVICE float power_of_added() const { return power_for(float(c.nu - 1), 1); }
  FWP_DEVICE void add_dpfp(int s) const {
    const float power = power_of_added();
    const uint32_t by = pack_halves(power, power);
    FWP_ROLLED (int u = 0; u < 2; ++u)
      each_group(c, 2 * s + u, [&](int b, int j, int column, bool there) {
        if (!there) return;
        uint32_t here[4] = {}, before[5] = {};
        const uint16_t* const d = values + thread * tile_ld + 32 * u + column;
        back_group(here, before, this->own_x + b, j, d, c.nu % 2 == 0);
        add_words(added(b), here, by), add_words(added(b - window_of(j)), before, by);
      });
  }
  FWP_DEVICE void put_added(OwnRow own) const {
    own.by *= undone(power_of_added());
    FWP_ROLLED (int i = -before_x(c); i < c.d_key; i += 8) {
      const Eight x = eight(added(i));
      float y[8];
      unpack(Type::float16, x, y);
      if (i >= 0) store_eight(own, i, y);
      else add_words(added(i + c.d_key), x.w, 0xbc00bc00u);  // x_i is x_{i + d_key} with the opposite sign
    }
  }
  // to += by x, in halves
  template <int N> static FWP_DEVICE void add_words(uint16_t* to, const uint32_t (&x)[N], uint32_t by) {
    FWP_UNROLL (int n = 0; n < N; ++n) word(to + 2 * n) = fma_halves(x[n], by, word(to + 2 * n));
  }
  // Slabs and their groups are processed from the last to the first, so that a group has the gradients from later
  // groups. The gradients of its last two x replace these x, which no earlier group needs.
  FWP_DEVICE void back_dpfp(const OwnRow& own, int s, uint32_t& left) const {
    const bool pair = c.nu == 2;
    const int columns = pair ? 32 : 16, begin = (pair ? 16 : 32) * s, last = is_added(c) ? -1 : c.d_key - 8;
    int column = begin + (pair ? 8 : 24);
    if (column > last) column = last;
    uint16_t* from = this->own_x + column;
    const uint16_t* d = values + thread * tile_ld + ((column - begin) >> 3) * columns;
    FWP_ROLLED (; column >= begin; column -= 8, from -= 8, d -= columns) {
      uint32_t dx[5] = {0, 0, 0, 0, left};
      back_group(dx + 1, dx, from, 1, d, pair);
      left = dx[0], word(from + 6) = dx[4];
      float floats[8];
      unpack(Type::float16, {dx[1], dx[2], dx[3], dx[4]}, floats);
      store_eight(own, column, floats);
    }
  }
};

template <int ROWS, bool CORRECTS, bool DECAYS, bool DPFP>
FWP_KERNEL(2 * ROWS, ROWS == 32 ? 5
                     : CORRECTS ? 2
                                : 3)
short_backward_kernel(FWP_CONSTANT Call c) {
  ShortBackward<ROWS, CORRECTS, DECAYS, DPFP>(c, block_index()).run();
}

}  // namespace fwp::gpu
