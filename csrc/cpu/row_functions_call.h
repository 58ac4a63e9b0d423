// Functions of one row of n numbers on the CPU. No torch header. fwp_fairseq/feature_maps/softmax_pair.py and
// fwp_fairseq/feature_maps/unit_rows.py say what they compute.
#pragma once

#include <cstddef>

namespace fwp {

// Those of one instruction set.
template <class T>
struct RowFunctions {
  // 2 n numbers of f and its gradient.
  struct SoftmaxPair {
    void (*forward)(const T* y, std::ptrdiff_t n, T* f);
    void (*backward)(const T* f, const T* df, std::ptrdiff_t n, T* dy);
  } softmax_pair;
  struct Unit {
    void (*forward)(const T* x, std::ptrdiff_t n, T eps, T* y);
    void (*backward)(const T* x, const T* dy, std::ptrdiff_t n, T eps, T* dx);
  } to_length_one, elu_to_length_one, to_rms_one;
};

}  // namespace fwp
