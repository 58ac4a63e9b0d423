// The table of one instruction set's kernels, which kernels.h fills, and the types of the calls that they are given. No
// torch header.
#pragma once

#include "../common/recurrence_call.h"
#include "../common/row_functions.h"
#include "call.h"
#include "decode_call.h"
#include "source_call.h"
#include "window_call.h"

namespace fwp {

template <class T> using RecurrenceCall = RecurrenceFields<T, Rows>;
template <class T> using LstmCall = LstmFields<T, Rows>;

// Computes one head of one batch row; `scratch` returns how many numbers of type T it needs as scratch.
template <class C, class T> struct HeadKernel {
  std::size_t (*scratch)(const C&);
  void (*run)(const C&, std::ptrdiff_t b, std::ptrdiff_t h, T* scratch);
};

template <class C, class T> struct HeadKernels {
  HeadKernel<C, T> forward, backward;
};

template <class T> struct DecodeKernels {
  std::size_t (*scratch)(const DecodeCall<T>&);
  void (*step)(const DecodeCall<T>&, std::ptrdiff_t row, std::ptrdiff_t head, T* scratch);
  // Reads with the rows from `first` to before `last`, which share a source.
  void (*read)(const DecodeCall<T>&, std::ptrdiff_t first, std::ptrdiff_t last, std::ptrdiff_t head, T* scratch);
  void (*fold)(const DecodeCall<T>&, std::ptrdiff_t row, std::ptrdiff_t head, T* scratch);
};

// Functions of one row of n numbers, in RowFunction's order. A backward is given x (for softmax_pair, f) and the
// gradient of the result.
template <class T> struct RowFunctions {
  typedef void Function(const T* x, const T* grad, std::ptrdiff_t n, T eps, T* result);
  Function *forward[row_functions], *backward[row_functions];
};

template <class T> struct KernelTable {
  HeadKernels<Call<T>, T> rules;
  DecodeKernels<T> decode;
  HeadKernels<RecurrenceCall<T>, T> recurrence;
  HeadKernels<LstmCall<T>, T> lstm;
  HeadKernels<WindowCall<T>, T> window;
  HeadKernel<SourceCall<T>, T> source;
  RowFunctions<T> rows;
};

}  // namespace fwp
