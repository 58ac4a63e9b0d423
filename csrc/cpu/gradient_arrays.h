// The arrays of a head's backward, beside those of its forward, with their sums and transposes; the notation is that of
// head_backward.h.
#pragma once

#include "instruction_set.h"

#include "head.h"
#include "rows.h"

namespace fwp::FWP_NAMESPACE {
namespace {

template <class T> struct GradientArrays : Head<T> {
  using Base = Head<T>;
  using Base::c, Base::corrects, Base::decays, Base::k, Base::ldp, Base::P, Base::plan, Base::W, Base::unmasked_KK,
      Base::unweighed_Y;

  T* states;  // W at the start of every chunk and after the last
  T* dW;  // [d_dot][wide]
  T *dq, *dk, *dx;  // of scaled features, [d_dot][ld of q, k]; of their inputs, [d_key, dpfp: 2 d_key][ld]
  T *dN, *dU, *dY;  // wide rows; dY ends as the gradient of K W, with that of z.k in the last column
  T *V, *QW;  // wide rows: values; Q W
  T *U_transposed, *transposed;  // [wide][lda]: transposes of U and of dN or dY
  T *dP, *dP_t;  // [tokens][lda]: gradient of P, then of K K^T, and its transpose
  T* d_seen;  // gradient of z.k
  // For rules that decay. unmasked: P before M, then the gradient of M; d_decay_to_end, dleft: the gradients of M's last
  // row and of left; running: H of head_backward.h.
  T *unmasked, *d_decay_to_end, *dleft, *running;
  T d_total_decay = 0;  // gradient of total_decay
  idx lda, columns;  // columns: d_value, and one more for z if the output is normalised
  bool has_dW = false;

  GradientArrays(const Call<T>& call, idx b, idx h, Arena<T>& arena) : Base(call, b, h, arena) {
    const idx rows = plan.rows, ld = rows + width<T>, size = rows * plan.wide, state = c.d_dot * plan.wide;
    lda = row_distance<T>(rows);
    columns = c.d_value + (c.normalize_output ? 1 : 0);
    states = arena.take((plan.chunks + 1) * state);
    W = states;
    dW = arena.take(state);
    dq = arena.take(c.d_dot * ld);
    dk = arena.take(c.d_dot * ld);
    dx = arena.take(gradient_rows(c) * ld);
    dN = arena.take(size);
    dU = arena.take(size);
    dY = arena.take(corrects ? size : 0);
    V = arena.take(corrects ? size : 0);
    QW = arena.take(size);
    U_transposed = arena.take(plan.wide * lda);
    transposed = arena.take(plan.wide * lda);
    dP = arena.take(rows * lda);
    dP_t = arena.take(rows * lda);
    d_seen = arena.take(ld);
    unmasked = arena.take(decays ? rows * ldp : 0);
    for (T** row : {&d_decay_to_end, &dleft, &running}) *row = arena.take(decays ? ld : 0);
    if (corrects && decays) {
      unmasked_KK = arena.take(rows * ldp);
      unweighed_Y = arena.take(size);
    }
  }

  // to[j][t] = rows[t][j]; tokens past the end become 0 in both.
  void transpose(T* rows, idx count, T* to) const {
    const idx padded = round_up(count, width<T>);
    for (idx i = count * plan.wide; i < padded * plan.wide; ++i) rows[i] = 0;
    for (idx t = 0; t < padded; t += width<T>)
      for (idx j = 0; j < plan.wide; j += width<T>)
        transpose_block(rows + t * plan.wide + j, plan.wide, to + j * lda + t, lda);
  }
  // dP_t = dP^T.
  void transpose_square(idx rows, idx columns) const {
    for (idx i = 0; i < rows; i += width<T>)
      for (idx j = 0; j < columns; j += width<T>) transpose_block(dP + i * lda + j, lda, dP_t + j * lda + i, lda);
  }
  // Multiplies row i of a square by by[i].
  void scale_square(T* square, idx rows, idx columns, const T* by) const {
    for (idx i = 0; i < rows; ++i)
      for (idx j = 0; j < columns; j += width<T>)
        store(square + i * lda + j, load(square + i * lda + j) * splat(by[i]));
  }

  // dP = left U^T without the column of ones; dP has `rows` padded rows.
  void pair_gradient(const T* left, idx rows, bool lower) const {
    if (lower) product_lower<false>(rows, k.padded, c.d_value, Base::rows(left), U_transposed, lda, dP, lda);
    else product<false>(rows, k.padded, c.d_value, Base::rows(left), U_transposed, lda, dP, lda);
  }
  // dP[i][j] += shift for j <= last, and 0 after it.
  void shift_row(idx i, idx last, T shift) const {
    const auto lane = lane_numbers<T>();
    for (idx j = 0; j < k.padded; j += width<T>) {
      Vec<T> x{};
      if (j <= last) {
        x = load(dP + i * lda + j) + splat(shift);
        if (j + width<T> > last + 1) x = lane <= Base::lane_limit(last - j) ? x : Vec<T>{};
      }
      store(dP + i * lda + j, x);
    }
  }
  T dot_values(const T* a, const T* b, idx t) const {  // of row t, without z's column
    return dot_unpadded(a + t * plan.wide, b + t * plan.wide, c.d_value);
  }
  T dot_row(idx i, idx last) const {  // P_i.dP_i over the columns up to and including `last`
    const auto lane = lane_numbers<T>();
    Vec<T> sum{};
    for (idx j = 0; j < k.padded && j <= last; j += width<T>) {
      const Vec<T> x = load(P + i * ldp + j) * load(dP + i * lda + j);
      sum += j + width<T> > last + 1 ? (lane <= Base::lane_limit(last - j) ? x : Vec<T>{}) : x;
    }
    return sum_of_lanes<T>(sum);
  }
};

}  // namespace
}  // namespace fwp::FWP_NAMESPACE
