// One call of the Delta LSTM's recurrence as plain pointers, for every device. No torch header. Shapes as in
// fwp_fairseq/ops/lstm_recurrence.py.
#pragma once

#include "recurrence_call.h"

namespace fwp {

enum class LstmKernel { forward, backward };

// `heads` are those of the net, H. z, k, v, beta, what was written, and R have 3 H: gate g of head h is number g H + h. What
// the fields before call y is h, the output.
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
