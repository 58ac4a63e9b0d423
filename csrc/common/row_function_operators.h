// Functions of rows and their backwards for any device. The functions here check the inputs and allocate the results,
// and a class Device computes them. A Device has two functions:
//
//     check(op, name, type)                   raises an error unless the device supports this type of the tensor `name`
//     run(op, function, backward, rows, eps)  computes the function, or its backward, of at least one row
#pragma once

#include <algorithm>
#include <numeric>
#include <vector>

#include "checks.h"
#include "row_functions.h"
#include "tensors.h"

namespace fwp {

// The inputs of a function, and its result, which the device writes. The rows of all tensors are contiguous, and their
// shapes differ only in the width. softmax_pair reads y, and its backward reads f and the gradient of f. Every other
// function reads x, and its backward reads x and the gradient of the result.
struct RowTensors {
  Tensor x, beside, result;  // beside is the gradient in a backward, and x in a forward

  int64_t count() const { return x.numel() / x.size(-1); }
  int64_t n() const { return std::min(x.size(-1), result.size(-1)); }  // softmax_pair's f is twice as wide

  // The dimensions that number the rows, the innermost first. Two dimensions become one if the outer continues the
  // inner in all three tensors.
  std::vector<RowDim> dims() const {
    std::vector<RowDim> found{{1, {}}};
    for (int64_t i = x.dim() - 2; i >= 0; --i) {
      const RowDim outer{x.size(i), {x.stride(i), beside.stride(i), result.stride(i)}};
      RowDim& inner = found.back();
      if (outer.size == 1) continue;
      bool follows = true;
      for (int t = 0; t < 3; ++t) follows = follows && outer.strides[t] == inner.size * inner.strides[t];
      if (inner.size == 1) inner = outer;
      else if (follows) inner.size *= outer.size;
      else found.push_back(outer);
    }
    return found;
  }
};

// The dimensions of x by their strides, the largest first; the last dimension stays last.
inline std::vector<int64_t> memory_order(const Tensor& x) {
  std::vector<int64_t> order(x.dim());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end() - 1, [&](int64_t a, int64_t b) { return x.stride(a) > x.stride(b); });
  return order;
}

// Allocates a tensor with the shape of x except for its width, with the rows in this order.
inline Tensor rows_like(const Tensor& x, int64_t width, at::IntArrayRef order) {
  std::vector<int64_t> sizes = x.sizes().vec(), strides(x.dim(), 1);
  sizes.back() = width;
  int64_t step = width;
  for (int64_t i = x.dim() - 2; i >= 0; --i) {
    strides[order[i]] = step;
    step *= std::max<int64_t>(sizes[order[i]], 1);
  }
  return at::empty_strided(sizes, strides, x.options());
}

// Computes a function of x, or its backward. In a backward, `grad` is the gradient of the function's result, and x is
// the function's input or, for softmax_pair, its result. The returned tensor is as wide as x; that of softmax_pair is
// twice as wide, and that of its backward half as wide.
template <class Device, RowFunction function, bool backward>
Tensor map_rows(const char* op, const char* name, const Tensor& x, const char* grad_name, const Tensor& grad,
                double eps) {
  check_given(op, name, x);
  Device::check(op, name, x.scalar_type());
  TORCH_CHECK_VALUE(x.dim() >= 1 && x.size(-1) >= 1, op, ": ", name, " is of shape ", x.sizes(),
                    ", expected rows of numbers");
  if (backward) {
    check_shape(op, grad_name, grad, x.sizes());
    check_like(op, grad_name, grad, x);
  }
  int64_t width = x.size(-1);
  if (function == RowFunction::softmax_pair) {
    TORCH_CHECK_VALUE(!backward || width % 2 == 0, op, ": ", name, " is of width ", width, ", expected an even one");
    width = backward ? width / 2 : 2 * width;
  }
  const std::vector<int64_t> order = memory_order(x);
  const Tensor result = rows_like(x, width, order);
  const auto placed = [&](const Tensor& x) { return (has_contiguous_rows(x) ? x : x.contiguous()).permute(order); };
  if (result.numel())
    Device::run(op, function, backward, RowTensors{placed(x), placed(backward ? grad : x), result.permute(order)}, eps);
  return result;
}

// Registers all functions of rows in the library m of this device.
template <class Device, class Library> void implement_row_functions(Library& m) {
  constexpr RowFunction pair = RowFunction::softmax_pair;
  m.impl(
      "softmax_pair",
      +[](const Tensor& y) { return map_rows<Device, pair, false>("fwp::softmax_pair", "y", y, "", y, 0); });
  m.impl(
      "softmax_pair_backward", +[](const Tensor& grad_f, const Tensor& f) {
        return map_rows<Device, pair, true>("fwp::softmax_pair_backward", "f", f, "grad_f", grad_f, 0);
      });
#define FWP_IMPLEMENT(name)                                                                                            \
  m.impl(                                                                                                              \
      #name, +[](const Tensor& x, double eps) {                                                                        \
        return map_rows<Device, RowFunction::name, false>("fwp::" #name, "x", x, "", x, eps);                          \
      });                                                                                                              \
  m.impl(                                                                                                              \
      #name "_backward", +[](const Tensor& grad_y, const Tensor& x, double eps) {                                      \
        return map_rows<Device, RowFunction::name, true>("fwp::" #name "_backward", "x", x, "grad_y", grad_y, eps);    \
      });
  FWP_UNIT_ROWS(FWP_IMPLEMENT)
#undef FWP_IMPLEMENT
}

}  // namespace fwp
