// The state that a block of the forward carries from piece to piece: all rows of W in slice_columns columns, and z. A column
// of W depends on the same column of v alone, so d_value / slice_columns blocks share a head, each with its own columns;
// all of them carry z. Both stand in shared memory; W, for want of room, where call.h says.
#pragma once

#include "limits.h"
#include "numbers.cuh"
#include "piece.cuh"

namespace fwp::gpu {

FWP_BOTH bool has_state(const Call& c) { return c.initial_W || c.W || c.targets > c.chunk || c.sources > c.chunk; }
FWP_BOTH int slices(const Call& c) { return has_state(c) && c.d_value > 0 ? pieces_of(c.d_value, slice_columns) : 1; }

// Neighbouring columns of one head's W, and its z: `count` of them are there. Null: zeros, or not wanted.
template <class Number> struct Columns {
  Number *W, *z;
  int stride, count;
};
template <class Number>
FWP_DEVICE Columns<Number> columns_of(const Call& c, const State<Number>& state, int head, int first, int most) {
  if (!state.W) return {};
  return {state.W + int64_t(head) * c.d_dot * c.d_value + first, state.z ? state.z + int64_t(head) * c.d_dot : nullptr,
          c.d_value, c.d_value - first < most ? c.d_value - first : most};
}
// Those that a block of the forward carries.
template <class Number> FWP_DEVICE Columns<Number> slice_of(const Call& c, const State<Number>& state, int head, int first) {
  return columns_of(c, state, head, first, slice_columns);
}

struct Carried {
  // Floats between rows: 4 modulo 32, so that the loads of operands meet no bank twice.
  static constexpr int stride = slice_columns + 4;
  float *W, *z;

  // At `base`; bytes used.
  FWP_BOTH int lay(char* base, const Call& c) {
    if (!has_state(c)) return 0;
    const int rows = c.resident ? round_up(c.d_dot * stride, 4) : 0;
    W = reinterpret_cast<float*>(base);
    z = W + rows;
    return 4 * (rows + round_up(c.d_dot, 4));
  }
  // Where the state stands that belongs at `place` in memory.
  template <class Number>
  FWP_DEVICE Columns<Number> columns(const Call& c, const State<Number>& place, int head, int first) const {
    Columns<Number> x{W, nullptr, stride, slice_columns};
    if (!c.resident) x = slice_of(c, place, head, first);
    x.z = c.normalize_output ? z : nullptr;
    return x;
  }

  FWP_DEVICE void load(const Call& c, const Columns<const float>& from, int threads) const {
    if (c.resident)
#pragma unroll 8
      for (int i = thread_index(); i < c.d_dot * slice_columns; i += threads) {
        const int row = i / slice_columns, column = i % slice_columns;
        W[row * stride + column] = column < from.count ? from.W[int64_t(row) * from.stride + column] : 0.f;
      }
    if (from.z)
      for (int i = thread_index(); i < c.d_dot; i += threads) z[i] = from.z[i];
  }
  // z goes to memory once: with the head's first columns.
  FWP_DEVICE void store(const Call& c, const Columns<float>& to, bool first, int threads) const {
    if (c.resident)
#pragma unroll 8
      for (int i = thread_index(); i < c.d_dot * slice_columns; i += threads) {
        const int row = i / slice_columns, column = i % slice_columns;
        if (column < to.count) to.W[int64_t(row) * to.stride + column] = W[row * stride + column];
      }
    if (to.z && first)
      for (int i = thread_index(); i < c.d_dot; i += threads) to.z[i] = z[i];
  }
};

}  // namespace fwp::gpu
