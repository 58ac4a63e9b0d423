// The arguments of one call of a recurrence, as plain pointers, for every device. fwp_fairseq/ops/recurrence.py
// explains the shapes. This file includes no header of torch.
#pragma once

#include <cstdint>

namespace fwp {

enum class RecurrenceKernel { forward, backward };

// The Delta RNN. T is the type of all numbers. Rows describes the rows of a (B, L, H, width) tensor on the device.
// States are contiguous: R is (B, H, d, d), and y is (B, H, d). An initial state that is null stands for zeros.
template <class T, template <class> class Rows>
struct RecurrenceFields {
  std::int64_t batch, heads, length, d;
  Rows<const T> z, k, v, beta;
  Rows<const bool> key_padding_mask;  // (B, L) with head stride 0; null without padding
  const T *initial_R, *initial_y;

  // Results of forward: the outputs and the written vectors of all positions, and R and y after the last position.
  Rows<T> out, written;
  T *R, *y;

  // For backward: results of forward, the gradients of its results (null stands for zeros), and the gradients to
  // compute.
  Rows<const T> found, found_written, grad_out;
  const T *last_R, *grad_R, *grad_y;
  Rows<T> grad_z, grad_k, grad_v, grad_beta;
  T *grad_initial_R, *grad_initial_y;
};

// The Delta LSTM. `heads` is H, the number of heads of the net. z, k, v, beta, the written vectors and R have 3 H
// heads: gate g of head h has the number g H + h. The fields named y contain h, the output.
template <class T, template <class> class Rows>
struct LstmFields : RecurrenceFields<T, Rows> {
  const T* initial_c;  // (B, H, d); null stands for zeros

  // Results of forward: c at all positions; u, sigmoid(i) and sigmoid(o), with 3 H heads; and c after the last
  // position.
  Rows<T> cells, gates;
  T* c;

  // For backward.
  Rows<const T> found_cells, found_gates;
  const T* grad_c;
  T* grad_initial_c;
};

}  // namespace fwp
