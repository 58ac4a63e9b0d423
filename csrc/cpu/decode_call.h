// One call of the decoding operators as plain pointers. No torch header.
#pragma once

#include "call.h"

namespace fwp {

// Shapes as in fwp_fairseq/ops/decoding.py; caches and states are contiguous.
template <class T>
struct DecodeCall {
  Rule rule;
  Map map;
  std::ptrdiff_t nu = 0, m = 0;   // see Width
  const T* projection = nullptr;  // (d_key, m)
  T input_scale = 1;              // the factor of the inputs that the projection multiplies
  bool normalize_features, normalize_output;
  T eps;
  std::ptrdiff_t rows, heads, tokens, stored, count;  // stored: rows of storage; count: positions in the block
  std::ptrdiff_t d_key, d_value, d_dot, d_cached;

  Rows<const T> q, k, v, beta, alpha;
  Rows<const bool> key_padding_mask;  // (R, T) with head stride 0; null: no padding
  T *keys, *written, *strengths = nullptr;
  const std::int32_t* ancestors = nullptr;  // null: every position of row r is in row state_rows[r]
  std::ptrdiff_t ancestors_ld = 0;
  const std::int32_t* state_rows;
  const T *W = nullptr, *z = nullptr;
  Rows<T> out;
  T *new_W = nullptr, *new_z = nullptr;  // fold
};

}  // namespace fwp
