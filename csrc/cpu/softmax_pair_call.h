// One call of softmax_pair on the CPU, and its kernels. No torch header. fwp_fairseq/feature_maps/softmax_pair.py says what it
// computes.
#pragma once

#include <cstddef>

namespace fwp {

// Kernels of one instruction set, for one row; n numbers of y, 2 n of f and its gradient.
template <class T>
struct SoftmaxPairKernels {
  void (*forward)(const T* y, std::ptrdiff_t n, T* f);
  void (*backward)(const T* f, const T* df, std::ptrdiff_t n, T* dy);
};

}  // namespace fwp
