// Functions of rows and their backwards for any device: inputs are checked and results are made here, a Device computes
// them. A Device has
//
//     check(op, name, type)                    fails for what the device does not serve; `name` is of this type
//     run(op, function, backward, rows, eps)   computes the function, or its backward, of a row or more
#pragma once

#include <algorithm>
#include <numeric>
#include <vector>

#include "checks.h"
#include "row_functions.h"
#include "tensors.h"

namespace fwp {

// The inputs of a function and its result, which is yet to be written: tensors with contiguous rows whose shapes differ
// in width at most. softmax_pair is given y, and its backward f and the gradient of f. Every other function is given x, and its
// backward x and the gradient of the result.
struct RowTensors {
  Tensor x, beside, result;  // a forward has x beside it

  int64_t count() const { return x.numel() / x.size(-1); }
  int64_t n() const { return std::min(x.size(-1), result.size(-1)); }  // f has twice as many

  // The dimensions that number the rows, the innermost first. Those that are one behind the other in all three tensors
  // are one.
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

// The dimensions of x, the last one last and the others in the order that they have in memory.
inline std::vector<int64_t> memory_order(const Tensor& x) {
  std::vector<int64_t> order(x.dim());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end() - 1, [&](int64_t a, int64_t b) { return x.stride(a) > x.stride(b); });
  return order;
}

// Of x's shape but `width` wide, with rows in this order.
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

// Computes a function of x, or its backward. The backward takes `grad`, the gradient of the function's result, and x: the
// function's input, or for softmax_pair its result. The tensor returned is as wide as x, twice as wide, or half as wide.
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

// Registers all of them, for the device that the library m is of.
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
