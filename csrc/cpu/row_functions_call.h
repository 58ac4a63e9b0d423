// The functions of ../common/row_functions.h of one row on the CPU. No torch header.
#pragma once

#include <cstddef>

namespace fwp {

// Those of one instruction set, in RowFunction's order. A backward is given x, of softmax_pair f, and the gradient of the
// result; n numbers of x or y.
template <class T>
struct RowFunctions {
  typedef void Function(const T* x, const T* grad, std::ptrdiff_t n, T eps, T* result);
  Function *forward[4], *backward[4];
};

}  // namespace fwp
