// One call of read_window on the CPU, and its kernels. No torch header. fwp_fairseq/ops/window.py says what it
// computes.
#pragma once

#include "call.h"

namespace fwp {

// Queries are the last `targets` of `sources` positions, and the last `far` of the queries have sums. u (H, d) and bias
// (H) are contiguous.
template <class T>
struct WindowCall {
  std::ptrdiff_t batch, heads, targets, sources, far, size, d;
  T scale;  // 1 / sqrt(d)
  Rows<const T> q, k, v, sums;
  Rows<const bool> key_padding_mask;  // (B, sources) with head stride 0; null: no padding
  // Position j of row b is in row places[b, j] of k and v, whose rows have one position each; null: it is at (b, j).
  Rows<const std::int32_t> places;
  const T *u, *bias;

  Rows<T> out;  // forward

  // backward: the gradient of the result, and those to compute; u and bias have one for each batch row, (B, H, d) and
  // (B, H)
  Rows<const T> grad_out;
  Rows<T> grad_q, grad_k, grad_v, grad_sums;
  T *grad_u, *grad_bias;
};

}  // namespace fwp
