// The gradient of beta under the gated rule. With M_ts = beta_s D_ts (decay.cuh) and G_ts the gradient of M_ts,
//
//     dbeta_s = sum over t of D_ts G_ts - sum over t >= s, r < s of D_ts beta_r D_{s-1,r} G_tr
//
// The first sum is what backward.cuh has for beta's own write. The second is the gradient of 1 - beta_s, of every write
// before s that is read after it; the state before the segment counts as a write with beta = 1, that after it as a read.
// It is summed as it stands: the usual differences of running sums, divided by 1 - beta_s, fail where that is small or 0.
// With D split at tiles as in decay.cuh it is one sum over the rows t of the own tile, to which is added, as row 16, what
// all later tiles and the end give:
//
//     sum over t in s .. 16 of D_ts (before_s G'_t + sum over r < s in the tile of D_{s-1,r} beta_r G_tr)
//
// where before_s = since(s - 1), and G'_t sums over r in earlier tiles. Each warp first leaves, of the rows of its own
// tile, G and G' of them and the sums over t of since(t) G_tr for every earlier r.
#pragma once

#include "gradients.cuh"

namespace fwp::gpu {

template <class P, int LT, Kind K> struct DecayGradient : Gradients<P, LT, K> {
  using Base = Gradients<P, LT, K>;
  using Base::c, Base::here, Base::s, Base::g, Base::t, Base::row, Base::tiles, Base::lane;
  using typename Base::Strip;

  static constexpr int state = LT;  // the number of the state among keys
  // In the place of Z, which belongs to the delta rule and has at least 68 floats a token; these are 31 at most.
  float *sums;     // [LT / 16][LT + 1]: sums over the rows of a tile; of a key, or of the state
  float *squares;  // [LT / 16][17][17]: G of a tile's rows and its own keys; row 16
  float *earlier;  // [LT]: G'
  float *of_state; // [LT]: a query's gradient of its share of the state
  float *end;      // [LT]: a key's gradient of its share in the state after the segment
  float *own;      // [LT]: the first sum
  float *of_end;   // [LT / 16]: the gradient of what the segment leaves of the state, a part in each warp
  const int w;     // own tile

  FWP_DEVICE DecayGradient(const Call& call, const Segment& segment)
      : Base(call, segment, true), sums(s.Z), squares(sums + tiles * (LT + 1)), earlier(squares + tiles * 17 * 17),
        of_state(earlier + LT), end(of_state + LT), own(end + LT), of_end(own + LT), w(row / 16) {}

  // Adds up x over the warp's 16 rows. x: of rows g and g + 8, the same in the lanes of a quad or one column each.
  FWP_DEVICE float row_sum(float x) const {
    FWP_UNROLL for (int lanes = 4; lanes < 32; lanes *= 2) x += shuffle_xor(x, lanes);
    return x;
  }

  // Takes the gradients of own queries' rows of M, with dP that of P but for dden, that of the denominator.
  FWP_DEVICE void take_rows(const Strip& dP, const float (&dden)[2], int last_q) {
    Strip S;
    Base::clear(S);
    Base::add_gram(S, s.queries, s.keys, 0, last_q);
    const float scale[2] = {s.scale_q[row + g], s.scale_q[row + g + 8]};
    const float since[2] = {c.causal ? Base::since(row + g) : 1.f, c.causal ? Base::since(row + g + 8) : 1.f};
    float before[2] = {};
    FWP_UNROLL for (int m = 0; m < tiles; ++m) {
      if (m >= last_q) continue;
      const bool same = c.causal && m == w;
      const float between = same || !c.causal ? 0.f : Base::across(m + 1, w);
      FWP_UNROLL for (int n = 2 * m; n < 2 * m + 2; ++n) {
        float column[2] = {};
        FWP_UNROLL for (int i = 0; i < 4; ++i) {
          const int j = 8 * n + 2 * t + (i & 1), r = i >> 1, q = Base::row_of(i);
          const float G = same && j > q ? 0.f : S[n][i] * (scale[r] * s.scale_k[j]) * (dP[n][i] + dden[r]);
          if (same) squares[(w * 17 + q % 16) * 17 + j % 16] = G;
          column[i & 1] += since[r] * G;
          before[r] += between * Base::tail(j) * s.beta[j] * G;
        }
        FWP_UNROLL for (int e = 0; e < 2; ++e) {
          column[e] = row_sum(column[e]);
          if (g == 0) sums[w * (LT + 1) + 8 * n + 2 * t + e] = column[e];
        }
      }
    }
    const float left = c.causal ? Base::across(0, w) : 0.f, from_state[2] = {of_state[row + g], of_state[row + g + 8]};
    const float total = row_sum(since[0] * from_state[0] + since[1] * from_state[1]);
    if (lane == 0) sums[w * (LT + 1) + state] = total;
    FWP_UNROLL for (int r = 0; r < 2; ++r) {
      before[r] = Base::quad_sum(before[r]) + left * from_state[r];
      if (t == 0) earlier[row + g + 8 * r] = before[r];
    }
  }

  // Takes the gradient of what the segment leaves of the state.
  FWP_DEVICE void take_state() {
    const auto product = [&](const float* x, const float* y, int count) {
      float sum = 0;
      const int64_t first = int64_t(here.head) * count;
#pragma unroll 4
      for (int i = thread_index(); i < count; i += 2 * LT) sum += x[first + i] * y[first + i];
      return sum;
    };
    float sum = 0;
    if (here.before.W && here.gradient_after.W) sum = product(here.before.W, here.gradient_after.W, c.d_dot * c.d_value);
    if (here.before.z && here.gradient_after.z) sum += product(here.before.z, here.gradient_after.z, c.d_dot);
    sum = row_sum(Base::quad_sum(sum));
    if (lane == 0) of_end[w] = sum;
  }

  // After a barrier: writes the gradients of own keys' betas. keys, queries: how many tiles there are.
  FWP_DEVICE void store_beta_gradient(int keys, int queries) {
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
          if (m > w) passed *= Base::since(16 * m + 15);
        }
        later += passed * at_end;
        if (key == state) sum += Base::across(0, w) * later;
        else if (key < row) sum += s.beta[key] * Base::tail(key) * Base::across(key / 16 + 1, w) * later;
        else square[16 * 17 + key - row] = later;
      }
      sum = row_sum(Base::quad_sum(sum));  // G' of row 16
      sync_warp();
      const int at = lane % 16, key = row + at;
      const float before = at ? Base::since(key - 1) : 1.f;
      float found = 0;
      FWP_ROLLED for (int i = (c.causal ? at : 16) + lane / 16; i <= 16; i += 2) {
        float x = before * (i < 16 ? earlier[row + i] : sum);
        for (int j = 0; j < at; ++j) x += Base::near(key - 1, row + j) * s.beta[row + j] * square[i * 17 + j];
        found += (i < 16 ? Base::near(row + i, key) : Base::tail(key)) * x;
      }
      found += shuffle_xor(found, 16);
      sum = own[key] - found;
    }
    const int key = row + lane;
    if (lane < 16 && key < here.keys) c.grad_beta.data[Base::offset(c.grad_beta, key)] = Base::key_there(key) ? sum : 0.f;
  }
};

}  // namespace fwp::gpu
