// Queries or keys of a tile on their way to features and back. Everything is transposed, [feature][token], with the
// tokens padded to whole vectors: a rolled feature is then another row, and a product of features that of two rows.
#pragma once

#include "instruction_set.h"

#include "simd.h"

namespace fwp::FWP_NAMESPACE {
namespace {

// One side (queries or keys) of a tile.
template <class T> struct Side {
  idx tokens, padded;  // padded: whole vectors
  idx ld;  // of x and phi
  T* x;  // inputs from which features and gradients are computed: [base_rows][ld]
  T* phi;  // [d_dot][ld], not normalised
  idx ahead = 0;  // distance from a row of inputs to the next one to prefetch
  T* scale;  // [padded]: phi * scale enters the rule; 0 at padding and after the last token
};

// The distance of rows: whole vectors, but not a multiple of 256 bytes, because such rows would share few cache sets.
template <class T> idx row_distance(idx tokens) {
  const idx padded = round_up(tokens, width<T>);
  return padded * sizeof(T) >= 256 && padded * sizeof(T) % 256 == 0 ? padded + width<T> : padded;
}

// Calls put(d, x_d of tokens t0 + t .. t0 + t + lanes) for all d; x is 0 beyond `count` and at padding. `buffer`: width
// x round_up(d_key) elements. `ahead` as in Side.
template <class T, class F>
FWP_INLINE void load_transposed(const Rows<const T>& rows, idx b, idx h, idx t0, idx t, idx count, idx d_key,
                                const Rows<const bool>& key_padding_mask, idx ahead, T* buffer, F put) {
  constexpr idx lanes = width<T>;
  bool direct = t + lanes <= count;
  if (direct && key_padding_mask)
    for (idx i = 0; i < lanes; ++i) direct = direct && !is_pad(key_padding_mask, b, t0 + t + i);
  const T* from = rows.data ? rows.at(b, t0 + t, h) : nullptr;
  idx first = 0;
  if (direct)
    for (; first + lanes <= d_key; first += lanes) {
      for (idx i = 0; i < lanes; ++i) prefetch<false>(from + i * rows.time + first + ahead);
      for_columns(from + first, rows.time, [&](auto i, Vec<T> column) FWP_INLINE_LAMBDA { put(first + i, column); });
    }
  if (first == d_key) return;
  // Rows that end within a vector, and vectors with absent tokens, are loaded from a copy that is filled up with zeros.
  const idx columns = round_up(d_key, lanes);
  for (idx i = 0; i < lanes; ++i) {
    const bool there = t + i < count && !is_pad(key_padding_mask, b, t0 + t + i);
    for (idx d = first; d < columns; ++d) buffer[i * columns + d] = there && d < d_key ? from[i * rows.time + d] : T(0);
  }
  for (; first < d_key; first += lanes)
    for_columns(buffer + first, columns, [&](auto i, Vec<T> column) FWP_INLINE_LAMBDA {
      if (first + i < d_key) put(first + i, column);
    });
}

// The reverse: stores rows of tokens t0 .. t0 + count from x[d][t].
template <class T>
void store_transposed(const Rows<T>& rows, idx b, idx h, idx t0, idx count, idx d_key, const T* x, idx ld) {
  constexpr idx lanes = width<T>;
  idx t = 0;
  for (; t + lanes <= count; t += lanes) {
    idx d = 0;
    for (; d + lanes <= d_key; d += lanes) transpose_block(x + d * ld + t, ld, rows.at(b, t0 + t, h) + d, rows.time);
    for (; d < d_key; ++d)
      for (idx i = 0; i < lanes; ++i) rows.at(b, t0 + t + i, h)[d] = x[d * ld + t + i];
  }
  for (; t < count; ++t) {
    T* to = rows.at(b, t0 + t, h);
    for (idx d = 0; d < d_key; ++d) to[d] = x[d * ld + t];
  }
}

}  // namespace
}  // namespace fwp::FWP_NAMESPACE
