// The gradient of what decays: of beta under the gated rule, of alpha under the gated delta rule. With M_ts = beta_s D_ts
// (decay.cuh) and G_ts the gradient of M_ts,
//
//     gated        dbeta_s = sum over t of D_ts G_ts - sum over t >= s, r < s of D_ts beta_r D_{s-1,r} G_tr
//     gated_delta  dalpha_s = the second sum, with M = D and so without beta_r
//
// The first sum is what backward.cuh has for beta's own write. The second is the gradient of keep_s, of every write
// before s that is read after it; the state before the segment counts as a write with beta = 1, that after it as a read.
// It is summed as it stands: the usual differences of running sums, divided by keep_s, fail where that is small or 0.
// With D split at tiles as in decay.cuh it is one sum over the rows t of the own tile, to which is added, as row 16, what
// all later tiles and the end give:
//
//     sum over t in s .. 16 of D_ts (before_s G'_t + sum over r < s in the tile of D_{s-1,r} beta_r G_tr)
//
// where before_s = since(s - 1), and G'_t sums over r in earlier tiles. Each warp first leaves, of the rows of its own
// tile, G and G' of them and the sums over t of since(t) G_tr for every earlier r.
//
// Under the gated delta rule keys read too, what they correct, and their rows are taken after those of the queries. Where the
// queries read after the last key, they give nothing but to row 16.
#pragma once

#include "decay.cuh"
#include "gradients.cuh"

namespace fwp::gpu {

template <class P, int LT, Rule RULE, Kind K, int TEAMS = 1>
struct DecayGradient : Decay<Gradients<P, LT, K, TEAMS>, LT, RULE> {
  using Base = Decay<Gradients<P, LT, K, TEAMS>, LT, RULE>;
  using Base::c, Base::here, Base::s, Base::g, Base::t, Base::row, Base::tiles, Base::lane;
  using typename Base::Strip;

  static constexpr int state = LT;  // the number of the state among keys
  static constexpr bool DELTA = corrects(RULE), GATED = RULE == Rule::gated;
  // Behind the blocks of D; under the gated rule in the place of Z, which has at least 68 floats a token, of which these
  // take 39 at most.
  float *sums;     // [LT / 16][LT + 1]: sums over the rows of a tile; of a key, or of the state
  float *key_sums; // the same over rows of keys
  float *squares;  // [LT / 16][17][17]: G of a tile's rows and its own keys; row 16
  float *earlier;  // [LT]: G'
  float *of_state, *of_key_state;  // [LT]: a query's, a key's gradient of its share of the state
  float *end;      // [LT]: a key's gradient of its share in the state after the segment
  float *own;      // [LT]: gated: the first sum
  float *of_end;   // [LT / 16]: the gradient of what the segment leaves of the state, a part in each warp
  const int w;     // own tile

  FWP_DEVICE DecayGradient(const Call& call, const Segment& segment)
      : Base(call, segment, true), sums(Base::has_room ? Base::blocks + decay_floats<LT> : s.Z),
        key_sums(sums + tiles * (LT + 1)), squares(key_sums + tiles * (LT + 1)), earlier(squares + tiles * 17 * 17),
        of_state(earlier + LT), of_key_state(of_state + LT), end(of_key_state + LT), own(end + LT), of_end(own + LT),
        w(row / 16) {}

  // Adds up x over the warp's 16 rows. x: of rows g and g + 8, the same in the lanes of a quad or one column each.
  FWP_DEVICE float row_sum(float x) const {
    FWP_UNROLL for (int lanes = 4; lanes < 32; lanes *= 2) x += shuffle_xor(x, lanes);
    return x;
  }

  // Takes the rows of own queries, or if KEYS of own keys, of the gradient of M o Q K^T or M o K K^T in the key tiles before
  // `last`; gradient(n, i, column) is what remains of it without the features' products.
  template <bool KEYS, class F> FWP_DEVICE void take_rows(int last, F gradient) {
    Strip S;
    Base::clear(S);
    Base::add_gram(S, KEYS ? s.keys : s.queries, s.keys, 0, last);
    const float* scales = (KEYS ? s.scale_k : s.scale_q) + row + g;
    const float* gradient_of_state = (KEYS ? of_key_state : of_state) + row + g;
    float* row_sums = (KEYS ? key_sums : sums) + w * (LT + 1);
    const bool causal = KEYS || c.causal;
    const float scale[2] = {scales[0], scales[8]};
    const float since[2] = {causal ? Base::since(row + g) : 1.f, causal ? Base::since(row + g + 8) : 1.f};
    float before[2] = {};
    FWP_UNROLL for (int m = 0; m < tiles; ++m) {
      if (m >= last) continue;
      const bool same = causal && m == w;
      const float between = same || !causal ? 0.f : Base::across(m + 1, w);
      FWP_UNROLL for (int n = 2 * m; n < 2 * m + 2; ++n) {
        float column[2] = {};
        FWP_UNROLL for (int i = 0; i < 4; ++i) {
          const int j = 8 * n + 2 * t + (i & 1), r = i >> 1, q = Base::row_of(i);
          const float G = same && j > q ? 0.f : S[n][i] * (scale[r] * s.scale_k[j]) * gradient(n, i, j);
          if (same) {
            float& square = squares[(w * 17 + q % 16) * 17 + j % 16];
            square = KEYS && c.causal ? square + G : G;
          }
          column[i & 1] += since[r] * G;
          before[r] += between * Base::tail(j) * written(j) * G;
        }
        FWP_UNROLL for (int e = 0; e < 2; ++e) {
          column[e] = row_sum(column[e]);
          if (g == 0) row_sums[8 * n + 2 * t + e] = column[e];
        }
      }
    }
    const float left = causal ? Base::across(0, w) : 0.f, from_state[2] = {gradient_of_state[0], gradient_of_state[8]};
    const float total = row_sum(since[0] * from_state[0] + since[1] * from_state[1]);
    if (lane == 0) row_sums[state] = total;
    FWP_UNROLL for (int r = 0; r < 2; ++r) {
      before[r] = Base::quad_sum(before[r]) + left * from_state[r];
      float& sum = earlier[row + g + 8 * r];
      if (t == 0) sum = KEYS ? sum + before[r] : before[r];
    }
  }
  // What D multiplies of a key's write.
  FWP_DEVICE float written(int key) const { return GATED ? s.beta[key] : 1.f; }

  // Takes the gradient of what the segment leaves of the state; all threads of the team that has the keys.
  FWP_DEVICE void take_state() {
    const auto product = [&](const float* x, const float* y, int count) {
      float sum = 0;
      const int64_t first = int64_t(here.head) * count;
#pragma unroll 4
      for (int i = thread_index() % (2 * LT); i < count; i += 2 * LT) sum += x[first + i] * y[first + i];
      return sum;
    };
    float sum = 0;
    if (here.before.W && here.gradient_after.W) sum = product(here.before.W, here.gradient_after.W, c.d_dot * c.d_value);
    if (here.before.z && here.gradient_after.z) sum += product(here.before.z, here.gradient_after.z, c.d_dot);
    sum = row_sum(Base::quad_sum(sum));
    if (lane == 0) of_end[w] = sum;
  }

  // After a barrier: writes the gradients of own keys' strengths. keys, queries: how many tiles there are.
  FWP_DEVICE void store_strength_gradient(int keys, int queries) {
    float* square = squares + w * 17 * 17;
    float sum = 0;
    if (w < keys) {
      FWP_ROLLED for (int i = lane; i <= row + 16; i += 32) {  // every key up to the own tile's last, and the state
        const int key = i == row + 16 ? state : i;
        float later = 0, at_end = key == state ? 0.f : end[key], passed = 1;
        if (key == state)
          FWP_ROLLED for (int m = 0; m < tiles; ++m) at_end += of_end[m];
        FWP_ROLLED for (int m = c.causal ? w + 1 : 0; m < tiles; ++m) {
          const float sum = m < queries ? sums[m * (LT + 1) + key] : 0.f;
          if (c.causal) later += passed * sum;
          else at_end += sum;
          if (DELTA && m > w && m < keys) later += passed * key_sums[m * (LT + 1) + key];
          if (m > w) passed *= Base::since(16 * m + 15);
        }
        later += passed * at_end;
        if (key == state) sum += Base::across(0, w) * later;
        else if (key < row) sum += written(key) * Base::tail(key) * Base::across(key / 16 + 1, w) * later;
        else square[16 * 17 + key - row] = later;
      }
      sum = row_sum(Base::quad_sum(sum));  // G' of row 16
      sync_warp();
      const int at = lane % 16, key = row + at;
      const float before = at ? Base::since(key - 1) : 1.f;
      float found = 0;
      FWP_ROLLED for (int i = (DELTA || c.causal ? at : 16) + lane / 16; i <= 16; i += 2) {
        float x = before * (i < 16 ? earlier[row + i] : sum);
        for (int j = 0; j < at; ++j) x += Base::near(key - 1, row + j) * written(row + j) * square[i * 17 + j];
        found += (i < 16 ? Base::near(row + i, key) : Base::tail(key)) * x;
      }
      found += shuffle_xor(found, 16);
      sum = GATED ? own[key] - found : found;
    }
    const int key = row + lane;
    const Rows<float>& to = GATED ? c.grad_beta : c.grad_alpha;
    if (lane < 16 && key < here.keys) to.data[Base::offset(to, key)] = Base::key_there(key) ? sum : 0.f;
  }
};

}  // namespace fwp::gpu
