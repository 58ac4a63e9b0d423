// Backward of one (batch row, head), up to LT queries and keys: one launch, one block a head, a warp for 16 tokens, or two
// (backward_teams.cuh). In calls of several segments a block has one of them, once their states and the gradients of these
// are there (pieces.h). It recomputes everything from q, k, v, beta and the gradient of out. With the names of forward.cuh,
// dN the gradient of N, dden and dseen those of den and seen, rate = beta read_rate, dW and dz the gradients of the final
// state:
//
//     dN = dout / den, dden = -dN.N / den
//     Z = (I + diag(rate) stril(K K^T))^-T (P^T dN + K dW);  x = Z.(V - E), dseen = rate x
//     dV = beta Z, dbeta = Z.E
//     dP = M o (dN (beta E)^T + dden),  dKK = stril(dseen - rate Z (beta E)^T)
//     dQ = dP K + dN W0^T + dden z0^T,  dK = dP^T Q + (dKK + dKK^T) K + beta E dW^T + dz - rate Z W0^T + dseen z0^T
//     dW0 = dW + Q^T dN - K^T rate Z,  dz0 = dz + Q^T dden + K^T dseen
//
// Under rules that decay, P, K K^T, and all that has to do with W0, z0, dW or dz, are multiplied by what decay.cuh leaves, and
// decay_gradient.cuh makes the gradient of beta (gated) or alpha; gated: beta Z is the gradient of V.
//
// How gradients of features become those of the inputs: gradients.cuh.
#pragma once

#include "block.cuh"
#include "decay_gradient.cuh"
#include "pieces.cuh"
#include "triangle.cuh"

namespace fwp::gpu {

template <class P, int LT, Rule RULE, Kind K, int TEAMS = 1>
struct Backward : Triangle<DecayGradient<P, LT, RULE, K, TEAMS>> {
  using Base = Triangle<DecayGradient<P, LT, RULE, K, TEAMS>>;
  using Base::c, Base::here, Base::s, Base::g, Base::t, Base::row, Base::stride, Base::tiles, Base::strip_tiles,
      Base::lane, Base::value_tiles, Base::states, Base::several, Base::w;
  static constexpr bool DELTA = corrects(RULE), DECAYS = decays(RULE), GATED = RULE == Rule::gated;
  static_assert(serves(RULE));
  using typename Base::Element, typename Base::Pair, typename Base::Strip, typename Base::Values,
      typename Base::Tile, typename Base::Operands;
  using KeyStrip = typename Base::template KeyStrip<DELTA>;
  // Whether registers suffice to make Q K^T beside K K^T and to load the gradient of out, both before they are needed.
  static constexpr bool early = !DELTA || (LT <= 64 && !states);

  const int keys, queries;     // tiles of keys and of queries
  const int last_q;            // own queries read the key tiles before this one
  const int first_k;           // own keys are read by the query tiles from this one on

  FWP_DEVICE Backward(const Call& call, const Segment& segment)
      : Base(call, segment), keys(Base::source_tiles), queries(Base::target_tiles),
        last_q(w >= queries ? 0 : call.causal && w + 1 < keys ? w + 1 : keys),
        first_k(w >= keys ? queries : call.causal ? w : 0) {}

  FWP_DEVICE void run() {
    if (DECAYS) Base::find_decay(thread_index());
    {
      Strip A;
      KeyStrip B;
      float sum_q[4] = {}, sum_k[4] = {};
      Base::clear(A);
      Base::clear(B);
      Base::template grams<DELTA, Base::together>(
          A, B, sum_q, sum_k, early ? last_q : 0, w < keys ? keys : 0, [](int, int, int) {}, [](auto&) {});
      Base::finish_scales(sum_q, sum_k);
      sync_block();
      solve_for_E(B);
      read(A);
      pull(B);
    }
    if constexpr (DELTA && DECAYS) read_key_state();
    sync_block();
    store_query_gradient();
    store_key_gradient();
    if constexpr (DECAYS) {
      Base::take_state();
      sync_block();
      Base::store_strength_gradient(keys, queries);
    }
    if (states && here.gradient_before.W) write_state_gradient();
  }

  // Barriers: of all warps; of the warps that have keys; of both teams where one waits for what the other leaves, while a
  // single team had its barrier when it left that.
  static FWP_DEVICE void meet(Site site = Site::here()) {
    if constexpr (TEAMS > 1) sync_teams(2 * LT * TEAMS, site);
    else sync_block(site);
  }
  static FWP_DEVICE void meet_keys(Site site = Site::here()) {
    if constexpr (TEAMS > 1) sync_team(1, 2 * LT, site);
    else sync_block(site);
  }
  static FWP_DEVICE void meet_other(Site site = Site::here()) {
    if constexpr (TEAMS > 1) sync_teams(2 * LT * TEAMS, site);
  }

  // x += (stored features of own tokens) W, in the columns from `first` on; zx = features . z for tokens g and g + 8.
  FWP_DEVICE void add_from_state(Values& x, float (&zx)[2], const Element* own, const State<const float>& state,
                                 int first) {
    const Columns<const float> from = columns_of(c, state, here.head, 0, c.d_value);
    float xz[4] = {};
    Base::for_slabs([&](int slab) {
      Base::for_features([&](auto rolled, int j, int i) {
        Pair features[1][4];
        Base::template own_features<rolled.value>(features, j, i, [&](int) { return own; });
        typename Base::Rows16 rows;
        Base::load_rows(rows, slab, j, i, from, first);
        Base::add_rows(x, xz, features[0], rows, from.z);
      });
    });
    Base::first_column(zx, xz);
  }

  // Computes E in shared memory. For delta B comes in as the products of stored keys and leaves as K K^T, multiplied
  // left of the diagonal by -read_rate of the row and beta of the column (the system of E), right of it by -rate of the
  // column (the transposed system of Z), and 0 on it.
  FWP_DEVICE void solve_for_E(KeyStrip& B) {
    const bool state = states && here.before.W && keys;
    const float scale[2] = {s.scale_k[row + g], s.scale_k[row + g + 8]};
    float seen[2] = {}, rate[2] = {1, 1}, share[2] = {scale[0], scale[1]};  // share: of products with the state
    if constexpr (DELTA) {
      if constexpr (DECAYS) {
        Base::weigh_pairs(B, keys);
        FWP_UNROLL for (int r = 0; r < 2; ++r) share[r] *= Base::left_of_state(row + g + 8 * r, true);
      }
      Base::for_strip([&](int n, int i, int j) {
        const int k = Base::row_of(i);
        B[n][i] = j == k ? 0.f : B[n][i] * (scale[i >> 1] * s.scale_k[j]);
        if (j < k) seen[i >> 1] += B[n][i];
      });
      FWP_UNROLL for (int r = 0; r < 2; ++r) {
        seen[r] = Base::quad_sum(seen[r]);
        rate[r] = Base::rate_of(seen[r] + c.eps);
      }
      if (!state) prepare(B, rate);
    }
    FWP_ROLLED for (int first = 0; first < c.d_value; first += value_block) {
      Values x;
      Base::load_values(c.v, true, first, x);
      if constexpr (DELTA) {
        if (state) {
          Values old;
          float from_z[2] = {};
          Base::clear(old);
          add_from_state(old, from_z, s.keys, here.before, first);
          if (first == 0) {
            FWP_UNROLL for (int r = 0; r < 2; ++r) rate[r] = Base::rate_of(seen[r] + share[r] * from_z[r] + c.eps);
            prepare(B, rate);
          }
          FWP_UNROLL for (int n = 0; n < value_tiles; ++n)
            FWP_UNROLL for (int i = 0; i < 4; ++i) x[n][i] -= rate[i >> 1] * share[i >> 1] * old[n][i];
        }
        if (w >= keys) Base::share_values(s.E, first, x);
        FWP_ROLLED for (int m = 0; m < keys; ++m) {
          if (w == m) Base::solve_block(x, s.E, first, false);
          meet_keys();
          if (w > m) {
            Float2 a[4];
            Base::operand_at(a, B, m);
            Base::add_product(x, a, s.E, m, first);
          }
        }
      } else {
        Base::share_values(s.E, first, x);
      }
    }
    meet();
  }

  // Multiplies B, K K^T on entry, by these rates. Stores read rates and the inverse of the own diagonal block.
  FWP_DEVICE void prepare(KeyStrip& B, const float (&rate)[2]) {
    if constexpr (DELTA) {
      if (t == 0) s.read_rate[row + g] = rate[0], s.read_rate[row + g + 8] = rate[1];
      meet_keys();
      Base::for_strip([&](int n, int i, int j) {
        B[n][i] *= j < Base::row_of(i) ? -rate[i >> 1] * s.beta[j] : -s.beta[j] * s.read_rate[j];
      });
      Base::share_block(B, s.square, false);
    }
  }

  // Stores dN, dden and shift_q (df.f) of own queries in shared memory; A holds the products of stored features.
  FWP_DEVICE void read(Strip& A) {
    if (!early) Base::add_gram(A, s.queries, s.keys, 0, last_q);
    const float scale[2] = {s.scale_q[row + g], s.scale_q[row + g + 8]};
    const bool state = states && here.before.W && queries;
    float den[2] = {}, dot[2] = {}, by[2], left[2] = {1, 1}, from_z[2] = {}, from_state[2] = {};
    Base::template for_decay<DECAYS, false>(0, early ? last_q : tiles, [&](int n, int i, int j, float left) {
      const float x = c.causal && j > Base::row_of(i) ? 0.f : A[n][i] * (scale[i >> 1] * s.scale_k[j]);
      A[n][i] = x * (left * s.beta[j]);
      den[i >> 1] += GATED ? A[n][i] : x * left;
    });
    if (DECAYS && state)
      FWP_UNROLL for (int r = 0; r < 2; ++r) left[r] = Base::left_of_state(row + g + 8 * r);
    FWP_UNROLL for (int r = 0; r < 2; ++r) {
      den[r] = Base::quad_sum(den[r]);
      by[r] = Base::rate_of(den[r] + c.eps);
    }
    meet_other();
    FWP_ROLLED for (int first = 0; first < c.d_value; first += value_block) {
      Values x;
      typename Base::Given gradient;
      constexpr bool before_use = early || DECAYS;  // else there are registers for it only after add_read
      if (before_use) Base::load_values(c.grad_out, false, first, gradient);
      Base::clear(x);
      if (state) {
        add_from_state(x, from_z, s.queries, here.before, first);
        FWP_UNROLL for (int r = 0; r < 2; ++r) by[r] = Base::rate_of(den[r] + left[r] * scale[r] * from_z[r] + c.eps);
        if constexpr (DECAYS)
          Base::for_values(gradient, [&](int n, int r, Float2 y) {
            from_state[r] += by[r] * scale[r] * (y.x * x[n][2 * r] + y.y * x[n][2 * r + 1]);
          });
        FWP_UNROLL for (int n = 0; n < value_tiles; ++n)
          FWP_UNROLL for (int i = 0; i < 4; ++i) x[n][i] *= left[i >> 1] * scale[i >> 1];
      }
      Base::add_read(x, A, s.E, 0, last_q, first);
      if (!before_use) Base::load_values(c.grad_out, false, first, gradient);
      Base::for_values(gradient, [&](int n, int r, Float2 y) {
        y = {by[r] * y.x, by[r] * y.y};
        dot[r] += y.x * x[n][2 * r] + y.y * x[n][2 * r + 1];
        x[n][2 * r] = y.x;
        x[n][2 * r + 1] = y.y;
      });
      Base::share_values(s.dN, first, x);
    }
    FWP_UNROLL for (int r = 0; r < 2; ++r) {
      dot[r] = Base::quad_sum(dot[r]);
      if (t == 0) {
        s.shift_q[row + g + 8 * r] = c.normalize_output ? dot[r] * by[r] * c.eps : dot[r];
        s.gradient_den[row + g + 8 * r] = c.normalize_output ? -dot[r] * by[r] : 0.f;
      }
      if constexpr (DECAYS) {
        from_state[r] = Base::quad_sum(from_state[r]);
        if (t == 0)
          Base::of_state[row + g + 8 * r] =
              from_state[r] + (c.normalize_output ? -dot[r] * by[r] * scale[r] * from_z[r] : 0.f);
      }
    }
    meet();
  }

  // Stores Z, x and shift_k (df.f) of own keys in shared memory, and writes the gradients of v and beta.
  FWP_DEVICE void pull(const KeyStrip& B) {
    if constexpr (DELTA) Base::share_block(B, s.square, true);
    Strip A;
    Base::clear(A);
    Base::add_gram(A, s.keys, s.queries, first_k, queries);
    pull(A, B);
  }
  // A: the products of stored keys with queries.
  FWP_DEVICE void pull(Strip& A, const KeyStrip& B) {
    meet_other();
    const float scale[2] = {s.scale_k[row + g], s.scale_k[row + g + 8]};
    const float beta[2] = {s.beta[row + g], s.beta[row + g + 8]};
    float from_den[2] = {}, from_dz[2] = {}, ZE[2] = {}, x[2] = {}, after[2] = {}, at_end[2] = {1, 1};
    if (DECAYS)
      FWP_UNROLL for (int r = 0; r < 2; ++r) at_end[r] = Base::at_end(row + g + 8 * r);
    Base::template for_decay<DECAYS, true>(early ? first_k : 0, early ? queries : tiles, [&](int n, int i, int j, float left) {
      A[n][i] = c.causal && j < Base::row_of(i) ? 0.f : A[n][i] * (scale[i >> 1] * s.scale_q[j]) * left;
      from_den[i >> 1] += A[n][i] * s.gradient_den[j];
    });
    FWP_UNROLL for (int r = 0; r < 2; ++r) {
      from_den[r] = Base::quad_sum(from_den[r]);
      if (t == 0) s.shift_k[row + g + 8 * r] = from_den[r];  // finish_keys adds the rest
    }
    FWP_ROLLED for (int first = 0; first < c.d_value; first += value_block) {
      Values Z;
      Base::clear(Z);
      const float* own_E = s.E + (row + g) * stride + first + 2 * t;
      if (states && here.gradient_after.W && keys) {
        float from_z[2] = {};
        add_from_state(Z, from_z, s.keys, here.gradient_after, first);
        FWP_UNROLL for (int r = 0; r < 2; ++r)
          if (first == 0) from_dz[r] = scale[r] * from_z[r];
        FWP_UNROLL for (int n = 0; n < value_tiles; ++n)
          FWP_UNROLL for (int r = 0; r < 2; ++r) {
            float *z = Z[n] + 2 * r;
            z[0] *= scale[r], z[1] *= scale[r];
            if constexpr (DECAYS) {
              const Float2 V = Single::load_pair(Type::float32, own_E + 8 * r * stride, 8 * n);
              after[r] += z[0] * V.x + z[1] * V.y;
              z[0] *= at_end[r], z[1] *= at_end[r];
            }
          }
      }
      Base::add_read(Z, A, s.dN, first_k, queries, first);
      if constexpr (DELTA) {
        if (w >= keys) Base::share_values(s.Z, first, Z);
        FWP_ROLLED for (int m = keys - 1; m >= 0; --m) {
          if (w == m) Base::solve_block(Z, s.Z, first, true);
          meet_keys();
          if (w < m) {
            Float2 a[4];
            Base::operand_at(a, B, m);
            Base::add_product(Z, a, s.Z, m, first);
          }
        }
      }
      typename Base::Given v;
      Base::load_values(c.v, true, first, v);  // also under the sum rule, as E's columns may lie in another order
      Base::for_values(v, [&](int n, int r, Float2 V) {
        const Float2 E = Single::load_pair(Type::float32, own_E + 8 * r * stride, 8 * n);
        ZE[r] += Z[n][2 * r] * E.x + Z[n][2 * r + 1] * E.y;
        if (DELTA) x[r] += Z[n][2 * r] * (V.x - E.x) + Z[n][2 * r + 1] * (V.y - E.y);
        Z[n][2 * r] *= beta[r];
        Z[n][2 * r + 1] *= beta[r];
      });
      Base::store_values(c.grad_v, here.keys, first, Z);
    }
    if constexpr (GATED) {
      FWP_UNROLL for (int r = 0; r < 2; ++r) {
        const int i = row + g + 8 * r;
        after[r] = Base::quad_sum(after[r]) + from_dz[r];
        ZE[r] = Base::quad_sum(ZE[r]) + from_den[r] + at_end[r] * from_dz[r];
        if (t == 0) Base::end[i] = after[r], Base::own[i] = ZE[r], s.shift_k[i] = beta[r] * ZE[r];
      }
    } else {
      if constexpr (DECAYS)
        FWP_UNROLL for (int r = 0; r < 2; ++r) {
          after[r] = beta[r] * Base::quad_sum(after[r]) + from_dz[r];
          if (t == 0) Base::end[row + g + 8 * r] = after[r];
          from_dz[r] *= at_end[r];
        }
      finish_keys(B, beta, ZE, x, from_dz);
    }
  }
  // gated_delta: stores own keys' gradients of their shares of the state. Reads it again, because in solve_for_E, where it is
  // read first, Z is not known yet.
  FWP_DEVICE void read_key_state() {
    float found[2] = {}, from_z[2] = {};
    if (states && here.before.W && keys)
      FWP_ROLLED for (int first = 0; first < c.d_value; first += value_block) {
        Values old;
        Base::clear(old);
        add_from_state(old, from_z, s.keys, here.before, first);
        const float* Z = s.Z + (row + g) * stride + first + 2 * t;
        FWP_UNROLL for (int n = 0; n < value_tiles; ++n)
          FWP_UNROLL for (int i = 0; i < 4; ++i) found[i >> 1] += Z[8 * (i >> 1) * stride + 8 * n + (i & 1)] * old[n][i];
      }
    FWP_UNROLL for (int r = 0; r < 2; ++r) {
      const int i = row + g + 8 * r;
      found[r] = s.gradient_seen[i] * from_z[r] - Base::quad_sum(found[r]);
      if (t == 0) Base::of_key_state[i] = s.beta[i] * s.read_rate[i] * s.scale_k[i] * found[r];
    }
  }
  // Gradients of beta and of seen, and shift_k. ZE and x come in as this lane's parts of Z.E and Z.(V - E).
  FWP_DEVICE void finish_keys(const KeyStrip& B, const float (&beta)[2], float (&ZE)[2], float (&x)[2],
                              const float (&from_dz)[2]) {
    float shift[2];
    FWP_UNROLL for (int r = 0; r < 2; ++r) {
      const int i = row + g + 8 * r;
      ZE[r] = Base::quad_sum(ZE[r]);
      x[r] = Base::quad_sum(x[r]);
      if (t == 0) s.gradient_seen[i] = DELTA && c.normalize_output ? x[r] : 0.f;
      if (DELTA && t == 0 && i < here.keys)
        c.grad_beta.data[Base::offset(c.grad_beta, i)] = Base::key_there(i) ? ZE[r] : 0.f;
      shift[r] = beta[r] * ZE[r] + from_dz[r];
    }
    if constexpr (DELTA) {
      meet_keys();
      float from_seen[2] = {};
      Base::for_strip([&](int n, int i, int j) {
        if (j > Base::row_of(i)) from_seen[i >> 1] -= B[n][i] * s.gradient_seen[j];
      });
      FWP_UNROLL for (int r = 0; r < 2; ++r) {
        const float rate = beta[r] * s.read_rate[row + g + 8 * r];
        shift[r] += Base::quad_sum(from_seen[r]) - rate * x[r] * (c.normalize_output ? c.eps : 1.f);
      }
    }
    FWP_UNROLL for (int r = 0; r < 2; ++r)
      if (t == 0) s.shift_k[row + g + 8 * r] += shift[r];
  }

  FWP_DEVICE void store_query_gradient() {
    Operands a;
    float back[2], left[2] = {1, 1};
    const float dden[2] = {s.gradient_den[row + g], s.gradient_den[row + g + 8]};
    if (DECAYS && states)
      FWP_UNROLL for (int r = 0; r < 2; ++r) left[r] = Base::left_of_state(row + g + 8 * r);
    {
      Strip dP;
      Base::clear(dP);
      Base::add_pairs(dP, s.dN, s.E, 0, last_q);
      if constexpr (DECAYS)
        Base::template take_rows<false>(
            last_q, [&](int n, int i, int j) { return (GATED ? 1.f : s.beta[j]) * dP[n][i] + dden[i >> 1]; });
      Base::template for_decay<DECAYS, false>(0, tiles, [&](int n, int i, int j, float left) {
        const bool in = n < 2 * last_q && !(c.causal && j > Base::row_of(i));
        const float gradient = GATED ? (dP[n][i] + dden[i >> 1]) * (left * s.beta[j]) : (s.beta[j] * dP[n][i] + dden[i >> 1]) * left;
        dP[n][i] = in ? gradient * s.scale_k[j] : 0.f;
      });
      Base::powers(back, dP);
      Base::operands(a, back, dP);
    }
    Base::store_inputs(
        false, back,
        [&](auto rolled, Tile& x, int first, int shift) {
          Base::template add_features<rolled.value>(x, a, s.keys, first, shift, 0, last_q);
        },
        [&](Tile& x, int slab, int first, int shift) {
          if (!here.before.W) return;
          const float for_z[2] = {left[0] * dden[0], left[1] * dden[1]};
          Base::add_state_rows(x, s.dN, left, here.before.W, slab, first, shift);
          if (c.normalize_output) Base::add_state_z(x, for_z, here.before.z, slab, first, shift);
        });
  }

  FWP_DEVICE void store_key_gradient() {
    Operands from_queries, from_keys;
    float back[2];
    float beta[2], rate[2], dseen[2], for_W[2], for_z[2] = {1, 1};  // for_W, for_z: of what was written into the state
    float found[2] = {1, 1};  // the share of the state that the key finds
    FWP_UNROLL for (int r = 0; r < 2; ++r) {
      const int i = row + g + 8 * r;
      beta[r] = for_W[r] = s.beta[i];
      if (GATED && states) for_z[r] = for_W[r] *= Base::at_end(i);
      if (DELTA && DECAYS && states) {
        for_W[r] *= for_z[r] = Base::at_end(i);
        found[r] = Base::left_of_state(i, true);
      }
      rate[r] = DELTA ? beta[r] * s.read_rate[i] : 0.f;
      dseen[r] = found[r] * (rate[r] * s.gradient_seen[i]);
    }
    {
      Strip dP;
      Base::clear(dP);
      Base::add_pairs(dP, s.E, s.dN, first_k, queries);
      Base::template for_decay<DECAYS, true>(0, tiles, [&](int n, int i, int j, float left) {
        const bool in = n >= 2 * first_k && n < 2 * queries && !(c.causal && j < Base::row_of(i));
        const float by = beta[i >> 1];
        const float gradient = GATED ? (dP[n][i] + s.gradient_den[j]) * (left * by) : (by * dP[n][i] + s.gradient_den[j]) * left;
        dP[n][i] = in ? gradient * s.scale_q[j] : 0.f;
      });
      Base::powers(back, dP);
      Base::operands(from_queries, back, dP);
    }
    if constexpr (DELTA) key_operands(from_keys, from_queries, back, beta, rate);
    Base::store_inputs(
        true, back,
        [&](auto rolled, Tile& x, int first, int shift) {
          Base::template add_features<rolled.value>(x, from_queries, s.queries, first, shift, first_k, queries);
          if constexpr (DELTA)
            if (w < keys) Base::template add_features<rolled.value>(x, from_keys, s.keys, first, shift, 0, keys);
        },
        [&](Tile& x, int slab, int first, int shift) {
          if (here.gradient_after.W) {
            Base::add_state_rows(x, s.E, for_W, here.gradient_after.W, slab, first, shift);
            if (here.gradient_after.z) Base::add_state_z(x, for_z, here.gradient_after.z, slab, first, shift);
          }
          if (DELTA && here.before.W) {
            const float minus[2] = {-rate[0] * found[0], -rate[1] * found[1]};
            Base::add_state_rows(x, s.Z, minus, here.before.W, slab, first, shift);
            if (c.normalize_output) Base::add_state_z(x, dseen, here.before.z, slab, first, shift);
          }
        });
  }

  // The gradient of K K^T as operands. Products with both operands are added up in the same accumulators, so
  // `from_queries` is brought to the same power of two.
  FWP_DEVICE void key_operands(Operands& from_keys, Operands& from_queries, float (&back)[2], const float (&beta)[2],
                               const float (&rate)[2]) {
    Strip dKK;
    Base::clear(dKK);
    Base::add_pairs(dKK, s.Z, s.E, 0, w < keys ? w + 1 : 0);  // left of the diagonal
    Base::add_pairs(dKK, s.E, s.Z, w + 1, keys);              // right of it
    if constexpr (DECAYS)
      Base::template take_rows<true>(w < keys ? w + 1 : 0, [&](int n, int i, int j) {
        const int k = Base::row_of(i);
        return j < k ? rate[i >> 1] * (s.gradient_seen[k] - s.beta[j] * dKK[n][i]) : 0.f;
      });
    Tile above;
    Base::clear(above);
    if (w < keys) Base::add_own_pairs(above, s.E, s.Z);
    FWP_UNROLL for (int m = 0; m < tiles; ++m)
      if (m < keys && w < keys)
        FWP_UNROLL for (int n = 0; n < 2; ++n)
          FWP_UNROLL for (int i = 0; i < 4; ++i) {
            const int j = 16 * m + 8 * n + 2 * t + (i & 1), k = Base::row_of(i);
            const float other_rate = s.beta[j] * s.read_rate[j], right = m == w ? above[n][i] : dKK[2 * m + n][i];
            const float x = j < k   ? rate[i >> 1] * (s.gradient_seen[k] - s.beta[j] * dKK[2 * m + n][i])
                            : j > k ? other_rate * (s.gradient_seen[j] - beta[i >> 1] * right)
                                    : 0.f;
            dKK[2 * m + n][i] = x * s.scale_k[j];
          }
    if constexpr (DECAYS) Base::weigh_pairs(dKK, keys);
    float own[2], before[2] = {back[0], back[1]};
    Base::powers(own, dKK);
    FWP_UNROLL for (int r = 0; r < 2; ++r) back[r] = larger(back[r], own[r]);
    if (P::scaled)
      FWP_UNROLL for (int r = 0; r < 2; ++r) {
        const float by = before[r] * one_over_power(back[r]);
        FWP_UNROLL for (int m = 0; m < tiles; ++m)
          FWP_UNROLL for (int i = r; i < 4; i += 2) from_queries[m][i] = P::multiply(from_queries[m][i], P::pair(by, by));
      }
    Base::operands(from_keys, back, dKK);
  }

  FWP_DEVICE void write_state_gradient() {
    const int token = thread_index();
    // The delta rule's diagonal blocks are no longer needed, nor are the gated rule's gradients of seen, of which it has none.
    float *by_Z = s.written, *by_den = GATED ? s.gradient_seen : s.square, *by_seen = s.square + LT;
    float* by_dN = GATED ? s.written : s.scale_q;
    if (GATED && token < LT) {
      by_dN[token] = Base::left_of_state(token) * s.scale_q[token];
      by_den[token] = s.gradient_den[token] * by_dN[token];
    } else if (token < LT) {
      const float found = DECAYS ? Base::left_of_state(token, true) : 1.f;
      const float rate = DELTA ? s.beta[token] * s.read_rate[token] * found : 0.f;
      if (DECAYS) s.scale_q[token] *= Base::left_of_state(token);
      by_Z[token] = -rate * s.scale_k[token];
      by_den[token] = s.gradient_den[token] * s.scale_q[token];
      by_seen[token] = rate * s.gradient_seen[token] * s.scale_k[token];
    }
    sync_block();
    Base::for_slabs([&](int slab) {
      FWP_ROLLED for (int number = w; number < Base::feature_tiles(); number += tiles)
        FWP_ROLLED for (int first = 0; first < c.d_value; first += value_block) {
          const typename Base::Tile16 tile[1] = {Base::feature_tile(number)};
          Values x[1];
          float xz[1][4];
          Base::load_outer(x, xz, slab, tile, first, columns_of(c, here.gradient_after, here.head, 0, c.d_value));
          if (DECAYS) Base::scale_outer(x, xz, Base::across(0, tiles));
          Base::add_outer(x, xz, s.queries, tile, s.dN, first, by_dN, by_den, queries);
          if (DELTA) Base::add_outer(x, xz, s.keys, tile, s.Z, first, by_Z, by_seen, keys);
          Base::store_outer(x, xz, slab, tile, first, columns_of(c, here.gradient_before, here.head, 0, c.d_value));
        }
    });
  }
};

}  // namespace fwp::gpu
