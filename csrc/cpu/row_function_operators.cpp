// Functions of rows and their backwards on the CPU: inputs checked, results made, and one task for some rows.
#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <string>
#include <vector>

#include "../common/checks.h"
#include "../common/tensors.h"
#include "capability.h"

namespace fwp {
namespace {

// Where the rows of three tensors of one shape, but for the width of rows, begin in memory. Dimensions that are one behind
// the other in all three are gone through as one.
struct RowPlaces {
  using Offsets = std::array<int64_t, 3>;
  struct Dim {
    int64_t size;
    Offsets strides;
  };
  std::vector<Dim> dims;  // the innermost first

  RowPlaces(const Tensor& x, const Tensor& y, const Tensor& z) {
    dims.push_back({1, {}});
    for (int64_t i = x.dim() - 2; i >= 0; --i) {
      const Dim outer{x.size(i), {x.stride(i), y.stride(i), z.stride(i)}};
      Dim& inner = dims.back();
      if (outer.size == 1) continue;
      bool follows = true;
      for (size_t t = 0; t < 3; ++t) follows = follows && outer.strides[t] == inner.size * inner.strides[t];
      if (inner.size == 1) inner = outer;
      else if (follows) inner.size *= outer.size;
      else dims.push_back(outer);
    }
  }

  // run(offsets of a row) for the rows first .. last.
  template <class F> void operator()(int64_t first, int64_t last, F run) const {
    const auto& [size, strides] = dims.front();
    for (int64_t i = first; i < last;) {
      Offsets at{};
      int64_t rest = i;
      for (const Dim& dim : dims) {
        for (size_t t = 0; t < 3; ++t) at[t] += rest % dim.size * dim.strides[t];
        rest /= dim.size;
      }
      for (const int64_t end = std::min(last, i - i % size + size); i < end; ++i) {
        run(at);
        for (size_t t = 0; t < 3; ++t) at[t] += strides[t];
      }
    }
  }
};

// The dimensions of x, the last one last and the others in the order that they have in memory.
std::vector<int64_t> memory_order(const Tensor& x) {
  std::vector<int64_t> order(x.dim());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end() - 1, [&](int64_t a, int64_t b) { return x.stride(a) > x.stride(b); });
  return order;
}

// Of x's shape but `width` wide, with rows in this order.
Tensor rows_like(const Tensor& x, int64_t width, at::IntArrayRef order) {
  std::vector<int64_t> sizes = x.sizes().vec(), strides(x.dim(), 1);
  sizes.back() = width;
  int64_t step = width;
  for (int64_t i = x.dim() - 2; i >= 0; --i) {
    strides[order[i]] = step;
    step *= std::max<int64_t>(sizes[order[i]], 1);
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
  const std::vector<int64_t> order = memory_order(given);
  const Tensor result = rows_like(given, width, order), to_be = result.permute(order),
               x = with_contiguous_rows(given).permute(order), y = with_contiguous_rows(other).permute(order);
  const T *from = x.const_data_ptr<T>(), *beside = y.const_data_ptr<T>();
  T* to = to_be.mutable_data_ptr<T>();
  const RowPlaces rows(x, y, to_be);
  at::parallel_for(0, x.numel() / x.size(-1), rows_of_a_task, [&](int64_t first, int64_t last) {
    rows(first, last, [&](const RowPlaces::Offsets& at) { run(from + at[0], beside + at[1], to + at[2]); });
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
