// Functions of rows and their backwards on the CPU: inputs checked, results made, and one task for some rows.
#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <torch/library.h>

#include <algorithm>
#include <string>
#include <vector>

#include "../common/checks.h"
#include "../common/tensors.h"
#include "capability.h"

namespace fwp {
namespace {

// Where row i of a tensor begins, in whatever order its rows are in memory.
struct RowPlaces {
  at::IntArrayRef sizes, strides;
  int64_t operator()(int64_t i) const {
    int64_t place = 0;
    for (int64_t dim = static_cast<int64_t>(sizes.size()) - 2; dim >= 0; --dim) {
      place += i % sizes[dim] * strides[dim];
      i /= sizes[dim];
    }
    return place;
  }
};

// Of x's shape but `width` wide, with rows in the order that x has in memory.
Tensor rows_like(const Tensor& x, int64_t width) {
  std::vector<int64_t> sizes = x.sizes().vec(), strides(x.dim(), 1), order(x.dim() - 1);
  sizes.back() = width;
  for (size_t i = 0; i < order.size(); ++i) order[i] = x.dim() - 2 - static_cast<int64_t>(i);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return x.stride(a) < x.stride(b); });
  int64_t step = width;
  for (int64_t dim : order) {
    strides[dim] = step;
    step *= std::max<int64_t>(sizes[dim], 1);
  }
  return at::empty_strided(sizes, strides, x.options());
}

void check(const char* op, const char* name, const Tensor& x) {
  check_given(op, name, x);
  check_type(op, name, x.scalar_type());
  TORCH_CHECK_VALUE(x.dim() >= 1 && x.size(-1) >= 1, op, ": ", name, " is of shape ", x.sizes(), ", expected rows of numbers");
}

constexpr int64_t rows_of_a_task = 64;

// run(row of x, row of y, row of the result) for every row of x and y, which are of one shape, as the result but `width` wide.
template <class T, class F> Tensor map_rows(const Tensor& given, const Tensor& other, int64_t width, F run) {
  const Tensor x = with_contiguous_rows(given), y = with_contiguous_rows(other), result = rows_like(given, width);
  const T* beside = y.const_data_ptr<T>();
  const RowPlaces of_y{y.sizes(), y.strides()};
  const T* from = x.const_data_ptr<T>();
  T* to = result.mutable_data_ptr<T>();
  const RowPlaces of_x{x.sizes(), x.strides()}, of_result{result.sizes(), result.strides()};
  at::parallel_for(0, x.numel() / x.size(-1), rows_of_a_task, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) run(from + of_x(i), beside + of_y(i), to + of_result(i));
  });
  return result;
}

// run(row of x, row of the result) likewise.
template <class T, class F> Tensor map_rows(const Tensor& x, int64_t width, F run) {
  return map_rows<T>(x, x, width, [=](const T* x, const T*, T* result) { run(x, result); });
}

Tensor softmax_pair(const Tensor& y) {
  check("fwp::softmax_pair", "y", y);
  return AT_DISPATCH_FLOATING_TYPES(y.scalar_type(), "fwp::softmax_pair", [&] {
    const auto run = chosen_row_functions<scalar_t>().softmax_pair.forward;
    const int64_t n = y.size(-1);
    return map_rows<scalar_t>(y, 2 * n, [=](const scalar_t* y, scalar_t* f) { run(y, n, f); });
  });
}

Tensor softmax_pair_backward(const Tensor& df, const Tensor& f) {
  static constexpr char op[] = "fwp::softmax_pair_backward";
  check(op, "f", f);
  check_shape(op, "grad_f", df, f.sizes());
  check_like(op, "grad_f", df, f);
  TORCH_CHECK_VALUE(f.size(-1) % 2 == 0, op, ": f is of width ", f.size(-1), ", expected an even one");
  return AT_DISPATCH_FLOATING_TYPES(f.scalar_type(), op, [&] {
    const auto run = chosen_row_functions<scalar_t>().softmax_pair.backward;
    const int64_t n = f.size(-1) / 2;
    return map_rows<scalar_t>(
        f, df, n, [=](const scalar_t* f, const scalar_t* df, scalar_t* dy) { run(f, df, n, dy); });
  });
}

enum class Unit { length, elu_length, rms };

template <Unit U> constexpr const char* name_of() {
  return U == Unit::length ? "fwp::to_length_one" : U == Unit::rms ? "fwp::to_rms_one" : "fwp::elu_to_length_one";
}
template <Unit U, class T> const auto& functions() {
  const RowFunctions<T>& all = chosen_row_functions<T>();
  if constexpr (U == Unit::length) return all.to_length_one;
  else if constexpr (U == Unit::rms) return all.to_rms_one;
  else return all.elu_to_length_one;
}

template <Unit U> Tensor to_one(const Tensor& x, double eps) {
  check(name_of<U>(), "x", x);
  return AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), name_of<U>(), [&] {
    const auto run = functions<U, scalar_t>().forward;
    const int64_t n = x.size(-1);
    return map_rows<scalar_t>(x, n, [=](const scalar_t* x, scalar_t* y) { run(x, n, static_cast<scalar_t>(eps), y); });
  });
}

template <Unit U> Tensor to_one_backward(const Tensor& dy, const Tensor& x, double eps) {
  static const std::string op = std::string(name_of<U>()) + "_backward";
  check(op.c_str(), "x", x);
  check_shape(op.c_str(), "grad_y", dy, x.sizes());
  check_like(op.c_str(), "grad_y", dy, x);
  return AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), name_of<U>(), [&] {
    const auto run = functions<U, scalar_t>().backward;
    const int64_t n = x.size(-1);
    return map_rows<scalar_t>(x, dy, n, [=](const scalar_t* x, const scalar_t* dy, scalar_t* dx) {
      run(x, dy, n, static_cast<scalar_t>(eps), dx);
    });
  });
}

}  // namespace

TORCH_LIBRARY_IMPL(fwp, CPU, m) {
  m.impl("softmax_pair", &softmax_pair);
  m.impl("softmax_pair_backward", &softmax_pair_backward);
  m.impl("to_length_one", &to_one<Unit::length>);
  m.impl("to_length_one_backward", &to_one_backward<Unit::length>);
  m.impl("elu_to_length_one", &to_one<Unit::elu_length>);
  m.impl("elu_to_length_one_backward", &to_one_backward<Unit::elu_length>);
  m.impl("to_rms_one", &to_one<Unit::rms>);
  m.impl("to_rms_one_backward", &to_one_backward<Unit::rms>);
}

}  // namespace fwp
