// One call of the recurrence as plain pointers. No torch header. Shapes as in fwp_fairseq/ops/recurrence.py.
#pragma once

#include "call.h"

namespace fwp {

// States are contiguous: R (B, H, d, d), y (B, H, d). Where an initial state is null, it is zero.
template <class T>
struct RecurrenceCall {
  std::ptrdiff_t batch, heads, length, d;
  Rows<const T> z, k, v, beta;
  Rows<const bool> key_padding_mask;  // (B, L) with head stride 0; null: no padding
  const T *initial_R = nullptr, *initial_y = nullptr;

  // forward: what is read, and what each position wrote; R and y after the last position
  Rows<T> out, written;
  T *R, *y;

  // backward: what the forward found, and the gradients that come in (null: zero) and go out
  Rows<const T> found, found_written, grad_out;
  const T *last_R = nullptr, *grad_R = nullptr, *grad_y = nullptr;
  Rows<T> grad_z, grad_k, grad_v, grad_beta;
  T *grad_initial_R = nullptr, *grad_initial_y = nullptr;  // null: not wanted

  // The Recurrent Delta Net instead has parts (B, L, H, 3 d + 1), q, k, v and the logit of beta, and weight (H, d, 3 d + 1).
  // Its forward keeps the parts with what was fed back.
  Rows<const T> parts, found_parts;
  const T* weight = nullptr;
  T largest, eps;
  Rows<T> fed_parts, grad_parts;
};

// One instruction set's kernels. Each call serves one (batch row, head) and owns its scratch for that time.
template <class T>
struct RecurrenceKernels {
  std::size_t (*scratch)(const RecurrenceCall<T>&);  // in elements of T, of either
  void (*forward)(const RecurrenceCall<T>&, std::ptrdiff_t b, std::ptrdiff_t h, T* scratch);
  void (*backward)(const RecurrenceCall<T>&, std::ptrdiff_t b, std::ptrdiff_t h, T* scratch);
  void (*net_forward)(const RecurrenceCall<T>&, std::ptrdiff_t b, std::ptrdiff_t h, T* scratch);
  void (*net_backward)(const RecurrenceCall<T>&, std::ptrdiff_t b, std::ptrdiff_t h, T* scratch);
};

}  // namespace fwp
