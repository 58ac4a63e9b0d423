// Decay. The write of a key t first multiplies everything written before it by keep_t: 1 - beta_t under the gated rule,
// alpha_t under the gated delta rule, 1 for padding. At a later token t, what key s wrote has therefore been multiplied
// by D[t][s], and the state before the chunk by D[t][64]:
//
//     D[t][s] = keep_{s+1} .. keep_t,     D[t][64] = keep_0 .. keep_t
//
// The factors are multiplied one by one. Quotients of cumulative products, or differences of logarithms, would fail
// where a factor is 0 or negative, and lose accuracy where it is small.
#pragma once

#include "call.h"
#include "device.cuh"

namespace fwp::gpu {

constexpr int decay_ld = chunk + 1, decay_floats = chunk * decay_ld;

// Thread s computes column s.
FWP_DEVICE void find_decay(float* D, const float* keep, int s) {
  if (s > chunk) return;
  float left = 1;
  FWP_ROLLED (int t = 0; t < chunk; ++t) {
    if (s == chunk || t > s) left *= keep[t];
    D[t * decay_ld + s] = s < chunk && t < s ? 0.f : left;
  }
}

// Computes the gradients of all keep from M, the gradients of all D. With x[t] = M[t][s] + keep_{t+1} x[t+1],
//
//     dkeep_t = sum over s < t and s = 64 of x[t] D[t-1][s],
//
// where D[-1][64] is 1. Entries D[t][s] with t <= s depend on no keep. Thread s replaces column s of M by the terms of
// these sums. After a barrier, kept_gradient(t) adds up row t.
FWP_DEVICE void find_kept_gradient(float* M, const float* D, const float* keep, int s) {
  if (s > chunk) return;
  float x = 0;
  FWP_ROLLED (int t = chunk - 1; t >= 0; --t) {
    const float before = t > 0 ? D[(t - 1) * decay_ld + s] : s == chunk ? 1.f : 0.f;
    x = M[t * decay_ld + s] + (t + 1 < chunk ? keep[t + 1] * x : 0.f);
    M[t * decay_ld + s] = s == chunk || t > s ? x * before : 0.f;
  }
}
FWP_DEVICE float kept_gradient(const float* M, int t) {
  float sum = 0;
  FWP_ROLLED (int s = 0; s <= chunk; ++s) sum += M[t * decay_ld + s];
  return sum;
}

}  // namespace fwp::gpu
