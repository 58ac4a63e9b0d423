// One call of the recurrences on the CPU, and its kernels. No torch header.
#pragma once

#include "../common/recurrence_call.h"
#include "call.h"

namespace fwp {

template <class T> using RecurrenceCall = RecurrenceFields<T, Rows>;

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
