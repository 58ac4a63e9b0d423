// Functions of rows and their backwards for any device: inputs are checked and results are made here, a Device computes them.
// A Device has
//
//     Guard                                    made of the inputs' device, lives as long as the operator runs
//     check(op, name, type)                    fails for what the device does not serve; `name` is the tensor of this type
//     run(op, function, backward, rows, eps)   computes the function, or its backward, of these RowTensors with a row or more
#pragma once

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "checks.h"
#include "row_functions.h"
#include "tensors.h"

namespace fwp {

// What a function is given, and its result to be written: tensors of one shape but for their width, with contiguous rows.
// softmax_pair is given y, its backward f and f's gradient, all others x and, the backward, the gradient of the result.
struct RowTensors {
  Tensor x, beside, result;  // a forward has x beside it

  int64_t count() const { return x.numel() / x.size(-1); }
  int64_t n() const { return std::min(x.size(-1), result.size(-1)); }  // f has twice as many

  // The dimensions that number the rows, the innermost first. Those that are one behind the other in all three tensors are one.
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

template <class Device>
Tensor map_rows(const char* op, RowFunction function, bool backward, const Tensor& x, const Tensor& beside, int64_t width,
                double eps) {
  const std::vector<int64_t> order = memory_order(x);
  const Tensor result = rows_like(x, width, order);
  const auto placed = [&](const Tensor& x) { return with_contiguous_rows(x).permute(order); };
  if (result.numel()) Device::run(op, function, backward, RowTensors{placed(x), placed(beside), result.permute(order)}, eps);
  return result;
}

template <class Device> void check_rows(const char* op, const char* name, const Tensor& x) {
  Device::check(op, name, x.scalar_type());
  TORCH_CHECK_VALUE(x.dim() >= 1 && x.size(-1) >= 1, op, ": ", name, " is of shape ", x.sizes(), ", expected rows of numbers");
}

template <class Device> Tensor softmax_pair(const Tensor& y) {
  static constexpr char op[] = "fwp::softmax_pair";
  check_given(op, "y", y);
  const typename Device::Guard guard(y.device());
  check_rows<Device>(op, "y", y);
  return map_rows<Device>(op, RowFunction::softmax_pair, false, y, y, 2 * y.size(-1), 0);
}

template <class Device> Tensor softmax_pair_backward(const Tensor& df, const Tensor& f) {
  static constexpr char op[] = "fwp::softmax_pair_backward";
  check_given(op, "f", f);
  const typename Device::Guard guard(f.device());
  check_rows<Device>(op, "f", f);
  check_shape(op, "grad_f", df, f.sizes());
  check_like(op, "grad_f", df, f);
  TORCH_CHECK_VALUE(f.size(-1) % 2 == 0, op, ": f is of width ", f.size(-1), ", expected an even one");
  return map_rows<Device>(op, RowFunction::softmax_pair, true, f, df, f.size(-1) / 2, 0);
}

inline const char* name_of(RowFunction function) {
#define FWP_QUOTED(name) "fwp::" #name,
  static constexpr const char* names[] = {"fwp::softmax_pair", FWP_UNIT_ROWS(FWP_QUOTED)};
#undef FWP_QUOTED
  return names[static_cast<int>(function)];
}

template <class Device, RowFunction function> Tensor to_one(const Tensor& x, double eps) {
  const char* const op = name_of(function);
  check_given(op, "x", x);
  const typename Device::Guard guard(x.device());
  check_rows<Device>(op, "x", x);
  return map_rows<Device>(op, function, false, x, x, x.size(-1), eps);
}

template <class Device, RowFunction function> Tensor to_one_backward(const Tensor& dy, const Tensor& x, double eps) {
  static const std::string name = std::string(name_of(function)) + "_backward";
  const char* const op = name.c_str();
  check_given(op, "x", x);
  const typename Device::Guard guard(x.device());
  check_rows<Device>(op, "x", x);
  check_shape(op, "grad_y", dy, x.sizes());
  check_like(op, "grad_y", dy, x);
  return map_rows<Device>(op, function, true, x, dy, x.size(-1), eps);
}

// Registers all of them, for the device that the library m is of.
template <class Device, class Library> void implement_row_functions(Library& m) {
  m.impl("softmax_pair", &softmax_pair<Device>);
  m.impl("softmax_pair_backward", &softmax_pair_backward<Device>);
#define FWP_IMPLEMENT(name)                               \
  m.impl(#name, &to_one<Device, RowFunction::name>);      \
  m.impl(#name "_backward", &to_one_backward<Device, RowFunction::name>);
  FWP_UNIT_ROWS(FWP_IMPLEMENT)
#undef FWP_IMPLEMENT
}

}  // namespace fwp
