// The functions of rows and their backward passes. A warp computes a row of any width; lane i has its numbers i, i +
// 32, .. A row is read several times, after the first time from the cache, so it need not fit into registers.
#pragma once

#include "features.cuh"
#include "row_functions_launch.h"

namespace fwp::gpu {

struct FunctionRow : Lanes {
  const float *x, *beside;
  float* result;
  int64_t n;
  float eps;
};

// f = [softmax(y), softmax(-y)]
struct SoftmaxPair {
  static FWP_DEVICE void forward(const FunctionRow& row) {
    row.softmax_pair(row.n, row.x, [&](int64_t i, float up, float down) {
      row.result[i] = up;
      row.result[row.n + i] = down;
    });
  }
  static FWP_DEVICE void backward(const FunctionRow& row) {
    row.softmax_pair_back(row.n, row.x, row.beside, [&](int64_t i, float dy) { row.result[i] = dy; });
  }
};

// y = phi(x) / l, l = |phi(x)| + eps, or sqrt(mean of phi(x)^2 + eps)
template <Map M, bool Rms> struct UnitRow {
  using Elementwise = Function<M>;

  const FunctionRow& row;
  const float share;  // factor of the sum of squares under the root
  const float root, factor;  // factor: 1 / l

  FWP_DEVICE explicit UnitRow(const FunctionRow& row)
      : row(row), share(Rms ? 1 / float(row.n) : 1.f), root(root_of()), factor(1 / (root + (Rms ? 0.f : row.eps))) {}

  FWP_DEVICE float phi(int64_t i) const { return Elementwise::template value<OfFloats>(row.x[i]); }
  FWP_DEVICE float root_of() const {
    return square_root(row.sum(row.n, [&](int64_t i) { return phi(i) * phi(i); }) * share + (Rms ? row.eps : 0.f));
  }

  static FWP_DEVICE void forward(const FunctionRow& row) {
    const UnitRow own(row);
    row.each(row.n, [&](int64_t i) { row.result[i] = own.phi(i) * own.factor; });
  }

  // dphi = dy / l - phi (phi.dy) share / (root l^2); the length of zeros has the gradient 0.
  static FWP_DEVICE void backward(const FunctionRow& row) {
    const UnitRow own(row);
    const float* const dy = row.beside;
    const float product = row.sum(row.n, [&](int64_t i) { return own.phi(i) * dy[i]; });
    const float along = own.root == 0 ? 0.f : product * own.share * own.factor * own.factor / own.root;
    row.each(row.n, [&](int64_t i) {
      const float phi = own.phi(i);
      row.result[i] = Elementwise::template back<OfFloats>(dy[i] * own.factor - phi * along, phi);
    });
  }
};
struct ToLengthOne : UnitRow<Map::identity, false> {};
struct EluToLengthOne : UnitRow<Map::elu, false> {};
struct ToRmsOne : UnitRow<Map::identity, true> {};

// run(row) for the rows of this warp.
template <class F> FWP_DEVICE void for_rows(const RowFunctionCall& c, F run) {
  FWP_ROLLED (int64_t i = int64_t(row_warps) * block_index() + warp_index(); i < c.rows;
              i += int64_t(row_warps) * c.blocks) {
    FunctionRow row{{}, c.x, c.beside, c.result, c.n, c.eps};
    int64_t rest = i;
    FWP_ROLLED (int d = 0; d < c.dims; ++d) {
      const RowDim& dim = c.dim[d];
      const bool last = d + 1 == c.dims;
      const int64_t step = last ? rest : rest % dim.size;
      if (!last) rest /= dim.size;
      row.x += step * dim.strides[0];
      row.beside += step * dim.strides[1];
      row.result += step * dim.strides[2];
    }
    run(row);
  }
}

template <class F> FWP_KERNEL(32 * row_warps, 1) row_kernel(FWP_CONSTANT RowFunctionCall c) {
  for_rows(c, [](const FunctionRow& row) { F::forward(row); });
}
template <class F> FWP_KERNEL(32 * row_warps, 1) row_backward_kernel(FWP_CONSTANT RowFunctionCall c) {
  for_rows(c, [](const FunctionRow& row) { F::backward(row); });
}

}  // namespace fwp::gpu
