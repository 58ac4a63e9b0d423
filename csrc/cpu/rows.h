// Rows in scratch, padded with zeros to whole vectors: copies to and from scratch, and sums.
#pragma once

#include "instruction_set.h"

#include "simd.h"

namespace fwp::FWP_NAMESPACE {
namespace {

// Prefetches the row of the next head, which follows this head's row in memory.
template <bool ToWrite, class T> FWP_INLINE void expect_row(const T* row, idx d) {
  for (idx i = 0; i < d; i += 64 / idx(sizeof(T))) prefetch<ToWrite>(row + d + i);
}
template <class T> FWP_INLINE void fetch_row(T* to, const T* from, idx d, idx D) {
  expect_row<false>(from, d);
  for (idx i = 0; i < d; ++i) to[i] = from[i];
  for (idx i = d; i < D; ++i) to[i] = 0;
}
template <class T> FWP_INLINE void put_row(T* to, const T* from, idx d) {
  expect_row<true>(to, d);
  for (idx i = 0; i < d; ++i) to[i] = from[i];
}

template <class T> FWP_INLINE T sum(const T* x, idx D) {
  Vec<T> total{};
  for (idx i = 0; i < D; i += width<T>) total += load(x + i);
  return sum_of_lanes<T>(total);
}
template <class T> FWP_INLINE T dot(const T* x, const T* y, idx D) {
  Vec<T> total{};
  for (idx i = 0; i < D; i += width<T>) total += load(x + i) * load(y + i);
  return sum_of_lanes<T>(total);
}

// The same for rows that are not padded.
template <class T> FWP_INLINE T dot_unpadded(const T* x, const T* y, idx n) {
  const idx whole = n / width<T> * width<T>;
  T total = dot(x, y, whole);
  for (idx i = whole; i < n; ++i) total += x[i] * y[i];
  return total;
}

// Divides the columns of a matrix into groups of vectors that fit into registers: calls f(first, Int<C>) for groups of
// C vectors, and then of fewer.
template <class T, int C = 4, class F> FWP_INLINE void for_groups(idx D, F f, idx i = 0) {
  for (; i + C * width<T> <= D; i += C * width<T>) f(i, Int<C>{});
  if constexpr (C > 1) for_groups<T, C / 2>(D, f, i);
}

}  // namespace
}  // namespace fwp::FWP_NAMESPACE
