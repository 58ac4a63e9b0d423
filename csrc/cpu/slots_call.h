// One call of read_slots on the CPU, and its kernels. No torch header. fwp_fairseq/ops/slots.py says what it computes.
#pragma once

#include "call.h"

namespace fwp {

// slots: m; used: the most slots that a source of the batch can use, min(m, sources).
template <class T>
struct SlotsCall {
  std::ptrdiff_t batch, heads, targets, sources, slots, used, d;
  T scale;  // 1 / sqrt(d)
  Rows<const T> q, k, v;
  Rows<const bool> key_padding_mask;  // (B, sources) with head stride 0; null: no padding
  const T *weight, *sharpness;        // (H, m, d) and (H), contiguous

  Rows<T> out;  // forward

  // backward: the gradients that come in and go out; those of the parameters are of each batch row, (B, H, used, d) and (B, H)
  Rows<const T> grad_out;
  Rows<T> grad_q, grad_k, grad_v;
  T *grad_weight, *grad_sharpness;
};

// One instruction set's kernels. Each call serves one (batch row, head) and owns its scratch for that time.
template <class T>
struct SlotsKernels {
  std::size_t (*scratch)(const SlotsCall<T>&);  // in elements of T
  void (*forward)(const SlotsCall<T>&, std::ptrdiff_t b, std::ptrdiff_t h, T* scratch);
  void (*backward)(const SlotsCall<T>&, std::ptrdiff_t b, std::ptrdiff_t h, T* scratch);
};

}  // namespace fwp
