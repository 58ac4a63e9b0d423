// Functions of rows and their backwards on the CPU: the choice of functions by type, and one task for some rows.
#include "../common/row_function_operators.h"

#include <ATen/Dispatch.h>
#include <torch/library.h>

#include <array>

#include "capability.h"
#include "glue.h"

namespace fwp {
namespace {

constexpr int64_t rows_of_a_task = 64;

// run(where a row begins in each of the three tensors) for the rows first .. last.
template <class F> void for_each_row(const std::vector<RowDim>& dims, int64_t first, int64_t last, F run) {
  const auto& [size, strides] = dims.front();
  for (int64_t i = first; i < last;) {
    std::array<int64_t, 3> at{};
    int64_t rest = i;
    for (const RowDim& dim : dims) {
      for (size_t t = 0; t < 3; ++t) at[t] += rest % dim.size * dim.strides[t];
      rest /= dim.size;
    }
    for (const int64_t end = std::min(last, i - i % size + size); i < end; ++i) {
      run(at);
      for (size_t t = 0; t < 3; ++t) at[t] += strides[t];
    }
  }
}

struct CpuRows {
  static void check(const char* op, const char* name, at::ScalarType type) { check_type(op, name, type); }

  static void run(const char*, RowFunction function, bool backward, const RowTensors& rows, double eps) {
    AT_DISPATCH_FLOATING_TYPES(rows.x.scalar_type(), "fwp::row_function", [&] {
      const RowFunctions<scalar_t>& all = chosen_kernels<scalar_t>().rows;
      const auto run = (backward ? all.backward : all.forward)[static_cast<int>(function)];
      const scalar_t *x = rows.x.const_data_ptr<scalar_t>(), *beside = rows.beside.const_data_ptr<scalar_t>();
      scalar_t* result = rows.result.mutable_data_ptr<scalar_t>();
      const int64_t n = rows.n();
      const std::vector<RowDim> dims = rows.dims();
      at::parallel_for(0, rows.count(), rows_of_a_task, [&](int64_t first, int64_t last) {
        for_each_row(dims, first, last, [&](const std::array<int64_t, 3>& at) {
          run(x + at[0], beside + at[1], n, static_cast<scalar_t>(eps), result + at[2]);
        });
      });
    });
  }
};

}  // namespace

TORCH_LIBRARY_IMPL(fwp, CPU, m) { implement_row_functions<CpuRows>(m); }

}  // namespace fwp
