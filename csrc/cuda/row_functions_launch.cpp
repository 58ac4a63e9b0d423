// Functions of rows and their backwards on CUDA: what a device can serve, and the launch.
#include <torch/library.h>

#include "../common/row_function_operators.h"
#include "glue.h"
#include "kernels/row_functions_launch.h"

namespace fwp::gpu {
namespace {

struct CudaRows {
  static void check(const char* op, const char* name, at::ScalarType type) { check_float(op, name, type); }

  static void run(const char* op, RowFunction function, bool backward, RowTensors rows, double eps) {
    const c10::cuda::CUDAGuard guard(rows.x.device());
    const std::string reason = refusal(op, rows.x.get_device(), 0);
    TORCH_CHECK_VALUE(reason.empty(), op, ": ", reason);
    std::vector<RowDim> dims = rows.dims();
    if (dims.size() > most_row_dims) {  // copies whose rows are one behind the other, as those of the result
      rows.x = rows.x.contiguous();
      rows.beside = rows.beside.contiguous();
      dims = rows.dims();
    }
    RowFunctionCall c{};
    c.function = function;
    c.backward = backward;
    c.rows = rows.count();
    c.n = rows.n();
    c.eps = static_cast<float>(eps);
    c.blocks = row_blocks(c.rows);
    c.dims = static_cast<int>(dims.size());
    std::copy(dims.begin(), dims.end(), c.dim);
    point(c.x, rows.x);
    point(c.beside, rows.beside);
    point(c.result, rows.result);
    start(op, launch_row_function, c);
  }
};

std::string cuda_row_function_refusal(int64_t device) { return refusal("fwp::cuda_row_function_refusal", device, 0); }

}  // namespace

TORCH_LIBRARY_FRAGMENT(fwp, m) { m.def("cuda_row_function_refusal(int device) -> str", &cuda_row_function_refusal); }
TORCH_LIBRARY_IMPL(fwp, CUDA, m) { implement_row_functions<CudaRows>(m); }

}  // namespace fwp::gpu
