// One call of read_source on the CPU. No torch header. fwp_fairseq/ops/source.py says what it computes.
#pragma once

#include "call.h"

namespace fwp {

template <class T>
struct SourceCall {
  std::ptrdiff_t batch, heads, targets, sources, d, d_value;
  Rows<const T> q;
  const T *keys, *values;  // (batch, heads, d, sources) and (batch, heads, sources, d_value)
  Rows<const bool> key_padding_mask;  // (batch, sources) with head stride 0; null: no padding
  Rows<T> out;
};

}  // namespace fwp
