// Softmax attention of a few queries to a whole source, of one head. The query t reads
//
//     y = sum_j e_j v_j / sum_j e_j,  e_j = exp(q_t.k_j - largest),  over the positions j that are not padding
//
// where `largest` is the largest q_t.k_j. Keys are columns, so both sums are products of a small and a large matrix. The
// large one is read once, in the order of memory, for all queries of a group.
#pragma once

#include "instruction_set.h"

#include "plan.h"
#include "product.h"
#include "rows.h"

namespace fwp::FWP_NAMESPACE {
namespace {

template <class T> struct Source {
  using Number = T;
  static constexpr idx lanes = width<T>, group = 16;  // queries that are computed together
  static constexpr T nothing = -T(__builtin_inf());

  const SourceCall<T>& c;
  idx b, h, S, D;  // S and D: rows of scores and of values, rounded up to whole vectors
  T *e, *y, *edge, *mask;  // mask: minus infinity at positions that are not read, otherwise 0

  Source(const SourceCall<T>& c, idx b, idx h, Arena<T>& arena)
      : c(c), b(b), h(h), S(round_up(c.sources, lanes)), D(round_up(c.d_value, lanes)) {
    e = arena.take(group * S);
    y = arena.take(group * D);
    mask = arena.take(S);
    edge = arena.take((c.d > c.sources ? c.d : c.sources) * lanes);
  }

  // C = A B, M x K times K x N, where the rows of B follow each other in memory without padding. A tile of C is read and
  // written once for some rows of B, so that few rows are read at a time. The next ones are prefetched if they are long,
  // because the processor foresees short rows by itself.
  void multiply(idx M, idx N, idx K, View<T> A, const T* B, T* C, idx ldc) const {
    constexpr int vectors = FWP_TILE_ROWS > 4 ? 4 : 2;
    const idx whole = N / lanes * lanes;
    const bool is_long = N > 256;
    const idx some = is_long ? 8 : 16;
    for (idx k = 0; k < K; k += some) {
      const idx left = K - k, count = left < some ? left : some, next = left < 2 * some ? left - count : some;
      for_groups<T, vectors>(whole, [&](idx j, auto n) FWP_INLINE_LAMBDA {
        const T* from = B + k * N + j;
        if (is_long)
          for (idx row = count; row < count + next; ++row)
            for (idx i = 0; i < n; ++i) prefetch<false>(from + row * N + i * lanes);
        for_row_tiles<4>(0, M, [&](auto r, idx i) FWP_INLINE_LAMBDA {
          Tile<decltype(r)::value, decltype(n)::value, T> tile;
          if (k) tile.read(C + i * ldc + j, ldc);
          else tile.zero();
          tile.add(A.p + i * A.row + k * A.col, A.row, A.col, from, N, count);
          tile.write(C + i * ldc + j, ldc);
        });
      });
    }
    if (whole == N) return;
    for (idx k = 0; k < K; ++k) {
      for (idx j = whole; j < N; ++j) edge[k * lanes + j - whole] = B[k * N + j];
      for (idx j = N - whole; j < lanes; ++j) edge[k * lanes + j] = 0;
    }
    product<false>(M, lanes, K, A, edge, lanes, C + whole, ldc);
  }

  // Replaces the scores of a query by e, and returns their sum.
  T exponentials(T* score) const {
    Vec<T> largest = splat(nothing), total{};
    for (idx j = 0; j < S; j += lanes) {
      const Vec<T> hidden = load(mask + j), s = hidden < Vec<T>{} ? hidden : load(score + j);
      store<T>(score + j, s);
      largest = s > largest ? s : largest;
    }
    T most = nothing;
    for (idx i = 0; i < lanes; ++i) most = largest[i] > most ? largest[i] : most;
    for (idx j = 0; j < S; j += lanes) {
      const Vec<T> x = exponential<T>(load(score + j) - splat(most));
      store<T>(score + j, x);
      total += x;
    }
    return sum_of_lanes<T>(total);
  }

  void forward() const {
    const idx head = b * c.heads + h;
    const T *keys = c.keys + head * c.d * c.sources, *values = c.values + head * c.sources * c.d_value;
    for (idx j = 0; j < S; ++j) mask[j] = j < c.sources && !is_pad(c.key_padding_mask, b, j) ? T(0) : nothing;
    for (idx first = 0; first < c.targets; first += group) {
      const idx count = c.targets - first < group ? c.targets - first : group;
      T share[group];
      multiply(count, c.sources, c.d, {c.q.at(b, first, h), c.q.time, 1}, keys, e, S);
      for (idx t = 0; t < count; ++t) share[t] = 1 / exponentials(e + t * S);
      multiply(count, c.d_value, c.sources, {e, S, 1}, values, y, D);
      for (idx t = 0; t < count; ++t) {
        T* out = c.out.at(b, first + t, h);
        for (idx i = 0; i < c.d_value; ++i) out[i] = y[t * D + i] * share[t];
      }
    }
  }
};

}  // namespace
}  // namespace fwp::FWP_NAMESPACE
