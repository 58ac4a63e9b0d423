// One call of the recurrences as plain pointers, for every device. No torch header. Shapes as in
// fwp_fairseq/ops/recurrence.py.
#pragma once

#include <cstdint>

namespace fwp {

enum class RecurrenceKernel { forward, backward };

// T: the type of all numbers; Rows: a device's rows of a (B, L, H, width) tensor. States are contiguous: R (B, H, d,
// d), y (B, H, d). Where an initial state is null, it is zero.
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
};

// The Delta LSTM: `heads` are those of the net, H. z, k, v, beta, what was written, and R have 3 H: gate g of head h is
// number g H + h. The fields named y above hold h, the output.
template <class T, template <class> class Rows>
struct LstmFields : RecurrenceFields<T, Rows> {
  const T* initial_c;  // (B, H, d); null: zero

  // forward: c after each position and after the last one; u, sigmoid(i) and sigmoid(o) of each position, 3 H heads
  Rows<T> cells, gates;
  T* c;

  // backward
  Rows<const T> found_cells, found_gates;
  const T* grad_c;
  T* grad_initial_c;
};

}  // namespace fwp
