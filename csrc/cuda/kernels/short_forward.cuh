// The forward pass of a sentence in one launch. A block processes a head.
#pragma once

#include "short.cuh"

namespace fwp::gpu {

template <int ROWS, bool CORRECTS, bool DECAYS, bool DPFP> struct ShortForward : Short<ROWS, CORRECTS, DECAYS, DPFP> {
  using Base = Short<ROWS, CORRECTS, DECAYS, DPFP>;
  using Base::c, Base::warp, Base::g, Base::t, Base::row, Base::x, Base::phi, Base::of_q, Base::of_k, Base::beta,
      Base::tiles, Base::square_ld;
  using typename Base::Square;
  uint16_t* v;  // values; later U

  FWP_BOTH static int lay(ShortForward* s, char* base, const Call& c) {
    Parts take{base};
    uint16_t* unused;
    // The memory of x later holds what T's halves round off, and outputs; that of phi holds T.
    int inputs = tile_ld;
    if (DPFP && 2 * x_ld(c) > inputs) inputs = 2 * x_ld(c);
    if (CORRECTS && square_ld > inputs) inputs = square_ld;
    take(s ? s->phi : unused, 2 * 2 * ROWS * tile_ld), take(s ? s->v : unused, 2 * ROWS * tile_ld);
    Base::lay_vectors(s, take);
    take(s ? s->x : unused, 2 * ROWS * inputs);  // the last one: the compiler knows where all others begin
    return take.used;
  }
  FWP_DEVICE ShortForward(const Call& call, int head) : Base(call, head) {
    lay(this, shared_memory(lay(nullptr, nullptr, call)), call);
    this->find_own_rows();
  }

  FWP_DEVICE void start_values(int first) const { this->start_rows(v, tile_ld, c.v, true, first, c.d_value); }

  // start_inputs, scale_inputs and start_rows are in maps.cuh; other functions that are not here, in short.cuh.
  FWP_DEVICE void run() const {
    this->start_inputs();
    this->load_gates();
    copies_arrived();
    sync_block();
    this->scale_inputs();
    if (!CORRECTS) start_values(0);
    uint32_t P[tiles][4];
    float norm[2], rate[2];
    pair_products(P, norm, rate);
    const int last = this->last_tile();
    FWP_ROLLED (int first = 0; first < c.d_value; first += chunk) {
      if (CORRECTS || first > 0) start_values(first);
      copies_arrived();
      const float by = undone(this->scale_columns(v, CORRECTS ? beta : nullptr));
      sync_block();
      if constexpr (CORRECTS) solve();
      Strip<8> o;
      clear(o);
      FWP_UNROLL (int k = 0; k < tiles; ++k)
        if (k <= last) this->add_row(o, P[k], v, 16 * k);
      const float of_rows[2] = {norm[0] * by, norm[1] * by};
      this->store_columns(c.out, x, o, of_rows, c.targets, first);
      if (first + chunk < c.d_value) sync_block();
    }
  }

  // Computes P as operands (multiplied by beta if the rule weighs writes), the factors of outputs, and T.
  FWP_DEVICE void pair_products(uint32_t (&P)[tiles][4], float (&norm)[2], float (&rate)[2]) const {
    Square p, a;
    clear(p);
    if constexpr (CORRECTS) clear(a);
    float sum_q[4] = {}, sum_k[4] = {};
    this->add_grams(p, a, sum_q, sum_k);
    float of_query[2], of_key[2];
    FWP_UNROLL (int r = 0; r < 2; ++r) {
      const int token = row + g + 8 * r;
      of_query[r] = this->norm_of(of_q[token], sum_q[2 * r]), of_key[r] = this->norm_of(of_k[token], sum_k[2 * r]);
      if (Base::weighs) of_key[r] *= beta[token];
    }
    sync_warp();
    if (t == 0) of_k[row + g] = of_key[0], of_k[row + g + 8] = of_key[1];
    sync_block();
    FWP_UNROLL (int n = 0; n < 2 * tiles; ++n) {
      const Float2 of = *reinterpret_cast<const Float2*>(of_k + 8 * n + 2 * t);
      FWP_UNROLL (int i = 0; i < 4; ++i) {
        p[n][i] *= i % 2 ? of.y : of.x;
        if constexpr (CORRECTS) a[n][i] *= i % 2 ? of.y : of.x;
      }
    }
    if (c.causal) this->template mask<false>(p);
    if constexpr (CORRECTS) this->template mask<true>(a);
    if constexpr (DECAYS) {
      this->each_decay([&](int n, int i, float d) {
        if (c.causal) p[n][i] *= d;
        if constexpr (CORRECTS) a[n][i] *= d;
      });
      if (!c.causal) this->each_last_decay([&](int n, int i, float d) { p[n][i] *= d; });
    }
    float largest[2] = {}, of_rows[2] = {}, of_keys[2] = {};  // of rows of P: the largest number, the sum; sums of A
    FWP_UNROLL (int n = 0; n < 2 * tiles; ++n)
      FWP_UNROLL (int i = 0; i < 4; ++i) {
        largest[i / 2] = larger(largest[i / 2], absolute(p[n][i]));
        of_rows[i / 2] += p[n][i];
        if constexpr (CORRECTS) of_keys[i / 2] += a[n][i];
      }
    sum_of_four(of_rows);
    of_four(largest, [](float x, float y) { return larger(x, y); });
    float power[2];
    FWP_UNROLL (int r = 0; r < 2; ++r) {
      power[r] = power_for(largest[r] * absolute(of_query[r]), 8);
      norm[r] = (c.normalize_output ? inverse_of(of_rows[r] * of_query[r] + c.eps) : 1.f) * undone(power[r]);
      power[r] *= of_query[r];
    }
    FWP_UNROLL (int n = 0; n < 2 * tiles; ++n)
      FWP_UNROLL (int i = 0; i < 4; ++i) p[n][i] *= power[i / 2];
    FWP_UNROLL (int k = 0; k < tiles; ++k) pack_operand(P[k], p[2 * k], p[2 * k + 1]);
    if constexpr (CORRECTS) {
      sum_of_four(of_keys);
      FWP_UNROLL (int r = 0; r < 2; ++r) {
        rate[r] = beta[row + g + 8 * r] * of_key[r];
        if (c.normalize_output) rate[r] *= inverse_of(of_keys[r] * of_key[r] + c.eps);
      }
      this->invert(a, rate, phi, x, reinterpret_cast<float*>(v));
    }
  }
  // v <- T v
  FWP_DEVICE void solve() const {
    Strip<8> u;
    clear(u);
    this->add_rows(u, phi, square_ld, warp, v);
    sync_block();
    this->put(v, tile_ld, u);
    sync_block();
  }
};

template <int ROWS> constexpr int short_blocks(bool corrects) {  // of a multiprocessor, at least
  return ROWS == 32 ? 7 : ROWS == 64 ? (corrects ? 3 : 4) : 1;
}
template <int ROWS, bool CORRECTS, bool DECAYS, bool DPFP>
FWP_KERNEL(2 * ROWS, short_blocks<ROWS>(CORRECTS))
short_forward_kernel(FWP_CONSTANT Call c) {
  ShortForward<ROWS, CORRECTS, DECAYS, DPFP>(c, block_index()).run();
}

}  // namespace fwp::gpu
