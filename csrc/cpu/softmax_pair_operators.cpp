// softmax_pair and its backward on the CPU: inputs checked, results made, and one task for some rows.
#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <torch/library.h>

#include <algorithm>
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

Tensor softmax_pair(const Tensor& given) {
  check("fwp::softmax_pair", "y", given);
  const Tensor y = with_contiguous_rows(given);
  const int64_t n = y.size(-1);
  const Tensor f = rows_like(given, 2 * n);
  AT_DISPATCH_FLOATING_TYPES(y.scalar_type(), "fwp::softmax_pair", [&] {
    const auto run = chosen_softmax_pair_kernels<scalar_t>().forward;
    const scalar_t* from = y.const_data_ptr<scalar_t>();
    scalar_t* to = f.mutable_data_ptr<scalar_t>();
    const RowPlaces of_y{y.sizes(), y.strides()}, of_f{f.sizes(), f.strides()};
    at::parallel_for(0, y.numel() / n, rows_of_a_task, [&](int64_t first, int64_t last) {
      for (int64_t i = first; i < last; ++i) run(from + of_y(i), n, to + of_f(i));
    });
  });
  return f;
}

Tensor softmax_pair_backward(const Tensor& given, const Tensor& found) {
  static constexpr char op[] = "fwp::softmax_pair_backward";
  check(op, "f", found);
  check_shape(op, "grad_f", given, found.sizes());
  check_like(op, "grad_f", given, found);
  TORCH_CHECK_VALUE(found.size(-1) % 2 == 0, op, ": f is of width ", found.size(-1), ", expected an even one");
  const Tensor f = with_contiguous_rows(found), df = with_contiguous_rows(given);
  const int64_t n = f.size(-1) / 2;
  const Tensor dy = rows_like(found, n);
  AT_DISPATCH_FLOATING_TYPES(f.scalar_type(), "fwp::softmax_pair", [&] {
    const auto run = chosen_softmax_pair_kernels<scalar_t>().backward;
    const scalar_t *from = f.const_data_ptr<scalar_t>(), *g = df.const_data_ptr<scalar_t>();
    scalar_t* to = dy.mutable_data_ptr<scalar_t>();
    const RowPlaces of_f{f.sizes(), f.strides()}, of_g{df.sizes(), df.strides()}, of_y{dy.sizes(), dy.strides()};
    at::parallel_for(0, dy.numel() / n, rows_of_a_task, [&](int64_t first, int64_t last) {
      for (int64_t i = first; i < last; ++i) run(from + of_f(i), g + of_g(i), n, to + of_y(i));
    });
  });
  return dy;
}

}  // namespace

TORCH_LIBRARY_IMPL(fwp, CPU, m) {
  m.impl("softmax_pair", &softmax_pair);
  m.impl("softmax_pair_backward", &softmax_pair_backward);
}

}  // namespace fwp
