// The state that a block of the forward carries from segment to segment: all rows of W in slice_columns columns, and z. A
// column of W depends on the same column of v alone, so d_value / slice_columns blocks share a head, each with its own
// columns; all of them carry z. Both lie in shared memory; a W that has no room there lies where call.h says.
#pragma once

#include "layout.cuh"
#include "operands.cuh"
#include "segment.cuh"

namespace fwp::gpu {

FWP_BOTH bool has_state(const Call& c) { return c.initial_W || c.W || c.targets > c.segment || c.sources > c.segment; }
FWP_BOTH int slices(const Call& c) { return has_state(c) && c.d_value > 0 ? segments_of(c.d_value, slice_columns) : 1; }

// `count` neighbouring columns of one head's W, and its z. Null pointers: zeros, or not wanted.
template <class Number> struct Columns {
  Number *W, *z;
  int stride, count;
  FWP_DEVICE bool exists() const { return W; }
};
template <class Number>
FWP_DEVICE Columns<Number> columns_of(const Call& c, const State<Number>& state, int head, int first, int most) {
  if (!state.W) return {};
  return {state.W + int64_t(head) * c.d_dot * c.d_value + first, state.z ? state.z + int64_t(head) * c.d_dot : nullptr,
          c.d_value, c.d_value - first < most ? c.d_value - first : most};
}
// The columns that a block of the forward carries.
template <class Number>
FWP_DEVICE Columns<Number> slice_of(const Call& c, const State<Number>& state, int head, int first) {
  return columns_of(c, state, head, first, slice_columns);
}

// These columns in shared memory, if there is room: rows as layout.cuh says, always slice_columns columns.
struct Resident {
  // Floats between rows: 4 modulo 32, so that the loads of operands meet no bank twice.
  static constexpr int stride = slice_columns + 4;
  float *W, *z;
  bool there;  // else zeros, or not wanted
  FWP_DEVICE bool exists() const { return there; }

  FWP_DEVICE Resident(const Call& c, char* base)
      : W(reinterpret_cast<float*>(base)), z(W + state_rows(c) * stride), there(c.initial_W) {}
  FWP_DEVICE Resident only_if(bool wanted) const {
    Resident x = *this;
    x.there = wanted;
    return x;
  }
  FWP_DEVICE void load(const Call& c, const Columns<const float>& from, int threads) const {
    if (is_wide(from))
      each<4>(c, threads, [&](int row, int feature, int column) {
        *reinterpret_cast<Vector*>(W + row * stride + column) =
            feature < 0 ? Vector{} : *reinterpret_cast<const Vector*>(from.W + int64_t(feature) * from.stride + column);
      });
    else
      each<1>(c, threads, [&](int row, int feature, int column) {
        const bool there = from.W && feature >= 0 && column < from.count;
        W[row * stride + column] = there ? from.W[int64_t(feature) * from.stride + column] : 0.f;
      });
    each<slice_columns>(c, threads, [&](int row, int feature, int) {
      z[row] = from.W && from.z && feature >= 0 ? from.z[feature] : 0.f;
    });
  }
  // z is stored once, with the head's first columns.
  FWP_DEVICE void store(const Call& c, const Columns<float>& to, bool first, int threads) const {
    if (is_wide(to))
      each<4>(c, threads, [&](int row, int feature, int column) {
        if (feature >= 0)
          *reinterpret_cast<Vector*>(to.W + int64_t(feature) * to.stride + column) =
              *reinterpret_cast<const Vector*>(W + row * stride + column);
      });
    else
      each<1>(c, threads, [&](int row, int feature, int column) {
        if (feature >= 0 && column < to.count) to.W[int64_t(feature) * to.stride + column] = W[row * stride + column];
      });
    if (to.z && first)
      each<slice_columns>(c, threads, [&](int row, int feature, int) {
        if (feature >= 0) to.z[feature] = z[row];
      });
  }

  // Whether all rows can be accessed as vectors.
  template <class Number> static FWP_DEVICE bool is_wide(const Columns<Number>& x) {
    return x.count == slice_columns && x.stride % 4 == 0 && reinterpret_cast<uintptr_t>(x.W) % 16 == 0;
  }
  // Calls f(row, its feature or -1, column) for every N columns.
  template <int N, class F> static FWP_DEVICE void each(const Call& c, int threads, F f) {
    constexpr int parts = slice_columns / N;
#pragma unroll 4
    for (int i = thread_index(); i < state_rows(c) * parts; i += threads)
      f(i / parts, feature_of_row(c, i / parts), i % parts * N);
  }
};

// Bytes of shared memory for it; where there is no room for W, those for z alone, by feature.
FWP_BOTH int state_bytes(const Call& c) {
  return !has_state(c) ? 0 : c.resident ? 4 * state_rows(c) * (Resident::stride + 1) : 4 * round_up(c.d_dot, 4);
}

}  // namespace fwp::gpu
