// One call of the recurrences as plain pointers, for every device. No torch header. Shapes as in
// fwp_fairseq/ops/recurrence.py.
#pragma once

#include <cstdint>

namespace fwp {

enum class RecurrenceKernel { forward, backward, net_forward, net_backward };

// T: the type of all numbers; Rows: a device's rows of a (B, L, H, width) tensor. States are contiguous: R (B, H, d, d),
// y (B, H, d). Where an initial state is null, it is zero.
template <class T, template <class> class Rows>
struct RecurrenceFields {
  std::int64_t batch, heads, length, d;
  Rows<const T> z, k, v, beta;
  Rows<const bool> key_padding_mask;  // (B, L) with head stride 0; null: no padding
  const T *initial_R, *initial_y;

  // forward: what is read, and what each position wrote; R and y after the last position
  Rows<T> out, written;
  T *R, *y;

  // backward: what the forward found, and the gradients that come in (null: zero) and go out
  Rows<const T> found, found_written, grad_out;
  const T *last_R, *grad_R, *grad_y;
  Rows<T> grad_z, grad_k, grad_v, grad_beta;
  T *grad_initial_R, *grad_initial_y;

  // The Recurrent Delta Net instead has parts (B, L, H, 3 d + 1), q, k, v and the logit of beta, and weight, contiguous:
  // (H, d, 3 d + 1) on the CPU, (H, 3 d + 1, d) on CUDA. Its forward keeps the parts with what was fed back.
  Rows<const T> parts, found_parts;
  const T* weight;
  T largest, eps;
  Rows<T> fed_parts, grad_parts;
};

}  // namespace fwp
