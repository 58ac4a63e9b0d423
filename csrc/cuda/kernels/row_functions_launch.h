// The host function that computes functions of rows. No torch header, no CUDA.
#pragma once

#include <algorithm>

#include "../../common/row_functions.h"

namespace fwp::gpu {

constexpr int row_warps = 4;  // of a block, each with a row of its own
constexpr int most_row_dims = 3;

// Rows of n numbers, of f of 2 n: x, what stands beside it (backward: the gradient of the result) and the result.
struct RowFunctionCall {
  RowFunction function;
  int backward;
  std::int64_t rows, n;
  float eps;
  int blocks;  // each warp has every n-th row, if there are n warps
  int dims;    // that number the rows, the innermost first
  RowDim dim[most_row_dims];
  const float *x, *beside;
  float* result;
};

// Enough blocks for any device, and never more than a launch may have.
inline int row_blocks(std::int64_t rows) {
  return static_cast<int>(std::min<std::int64_t>((rows + row_warps - 1) / row_warps, 1 << 20));
}

// `stream` is a cudaStream_t. Returns null or an error message.
const char* launch_row_function(const RowFunctionCall& call, void* stream);

}  // namespace fwp::gpu
