// The functions of rows and their backwards, a warp a row: lane i has the numbers i, i + 32, .. of the row, however
// wide it is. A row is read several times, but for the first time from the cache, so that nothing of it has to fit into
// registers.
#pragma once

#include "device.cuh"
#include "features.cuh"
#include "row_functions_launch.h"

namespace fwp::gpu {

struct Row {
  const float *x, *beside;
  float* result;
  int64_t n;
  float eps;

  template <class F> FWP_DEVICE void each(F f) const {
    FWP_ROLLED (int64_t i = thread_index() % 32; i < n; i += 32) f(i);
  }
  // The sum of number(i) over the row, for every lane.
  template <class F> FWP_DEVICE float sum(F number) const {
    float total = 0;
    each([&](int64_t i) { total += number(i); });
    FWP_UNROLL (int mask = 16; mask > 0; mask /= 2) total += shuffle_xor(total, mask);
    return total;
  }
  // The largest number(i) that is not NaN, if there is one.
  template <class F> FWP_DEVICE float largest(F number) const {
    float most = number(0);
    each([&](int64_t i) { most = larger(most, number(i)); });
    FWP_UNROLL (int mask = 16; mask > 0; mask /= 2) most = larger(most, shuffle_xor(most, mask));
    return most;
  }
};

// f = [softmax(y), softmax(-y)]
struct SoftmaxPair {
  static FWP_DEVICE void forward(const Row& row) {
    const float* const y = row.x;
    float *const up = row.result, *const down = up + row.n;
    const float most = row.largest([&](int64_t i) { return y[i]; }),
                least = -row.largest([&](int64_t i) { return -y[i]; });
    const float share_up = 1 / row.sum([&](int64_t i) { return exponential(y[i] - most); });
    const float share_down = 1 / row.sum([&](int64_t i) { return exponential(least - y[i]); });
    row.each([&](int64_t i) {
      up[i] = exponential(y[i] - most) * share_up;
      down[i] = exponential(least - y[i]) * share_down;
    });
  }

  // dy = f+ (df+ - f+.df+) - f- (df- - f-.df-)
  static FWP_DEVICE void backward(const Row& row) {
    const float *const up = row.x, *const down = up + row.n, *const dup = row.beside, *const ddown = dup + row.n;
    const float mean_up = row.sum([&](int64_t i) { return up[i] * dup[i]; });
    const float mean_down = row.sum([&](int64_t i) { return down[i] * ddown[i]; });
    row.each([&](int64_t i) { row.result[i] = up[i] * (dup[i] - mean_up) - down[i] * (ddown[i] - mean_down); });
  }
};

// y = phi(x) / l, l = |phi(x)| + eps, or sqrt(mean of phi(x)^2 + eps)
template <Map M, bool Rms> struct UnitRow {
  using Phi = Function<M>;

  const Row& row;
  const float share;  // what squares are multiplied by under the root
  const float root, factor;  // factor: 1 / l

  FWP_DEVICE explicit UnitRow(const Row& row)
      : row(row), share(Rms ? 1 / float(row.n) : 1.f), root(root_of()), factor(1 / (root + (Rms ? 0.f : row.eps))) {}

  FWP_DEVICE float phi(int64_t i) const { return Phi::template value<OfFloats>(row.x[i]); }
  FWP_DEVICE float root_of() const {
    return square_root(row.sum([&](int64_t i) { return phi(i) * phi(i); }) * share + (Rms ? row.eps : 0.f));
  }

  static FWP_DEVICE void forward(const Row& row) {
    const UnitRow own(row);
    row.each([&](int64_t i) { row.result[i] = own.phi(i) * own.factor; });
  }

  // dphi = dy / l - phi (phi.dy) share / (root l^2); the length of zeros has the gradient 0.
  static FWP_DEVICE void backward(const Row& row) {
    const UnitRow own(row);
    const float* const dy = row.beside;
    const float product = row.sum([&](int64_t i) { return own.phi(i) * dy[i]; });
    const float along = own.root == 0 ? 0.f : product * own.share * own.factor * own.factor / own.root;
    row.each([&](int64_t i) {
      const float phi = own.phi(i);
      row.result[i] = Phi::template back<OfFloats>(dy[i] * own.factor - phi * along, phi);
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
    Row row{c.x, c.beside, c.result, c.n, c.eps};
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
  for_rows(c, [](const Row& row) { F::forward(row); });
}
template <class F> FWP_KERNEL(32 * row_warps, 1) row_backward_kernel(FWP_CONSTANT RowFunctionCall c) {
  for_rows(c, [](const Row& row) { F::backward(row); });
}

}  // namespace fwp::gpu
