// One call of the recurrences on the CPU, and its kernels. No torch header.
#pragma once

#include "../common/lstm_call.h"
#include "call.h"

namespace fwp {

template <class T> using RecurrenceCall = RecurrenceFields<T, Rows>;
template <class T> using LstmCall = LstmFields<T, Rows>;

// One instruction set's kernels. Each call serves one (batch row, head) and owns its scratch for that time.
template <class T>
struct RecurrenceKernels {
  std::size_t (*scratch)(const RecurrenceCall<T>&);  // in elements of T, of the four that follow
  void (*forward)(const RecurrenceCall<T>&, std::ptrdiff_t b, std::ptrdiff_t h, T* scratch);
  void (*backward)(const RecurrenceCall<T>&, std::ptrdiff_t b, std::ptrdiff_t h, T* scratch);
  void (*net_forward)(const RecurrenceCall<T>&, std::ptrdiff_t b, std::ptrdiff_t h, T* scratch);
  void (*net_backward)(const RecurrenceCall<T>&, std::ptrdiff_t b, std::ptrdiff_t h, T* scratch);
  std::size_t (*lstm_scratch)(const LstmCall<T>&);
  void (*lstm_forward)(const LstmCall<T>&, std::ptrdiff_t b, std::ptrdiff_t h, T* scratch);
  void (*lstm_backward)(const LstmCall<T>&, std::ptrdiff_t b, std::ptrdiff_t h, T* scratch);
};

}  // namespace fwp
