// A call with both_ways as two calls that go in one direction: the second half of the heads begins at the last token, with
// a negative stride of time. No torch header, no CUDA.
#pragma once

#include <cstdint>
#include <type_traits>

#include "call.h"

namespace fwp::gpu {

// Rows whose data begin so many elements of `size` bytes further on.
template <class V> void advance(Rows<V>& rows, int64_t elements, int size) {
  using Byte = std::conditional_t<std::is_const_v<V>, const char, char>;
  if (rows.data) rows.data = reinterpret_cast<V*>(reinterpret_cast<Byte*>(rows.data) + elements * size);
}

// Calls f(rows, bytes of an element) for everything that a call has of its queries, or of its keys.
template <class F> void for_rows_of_queries(Call& call, F f) {
  const int size = bytes_of_element(call.type);
  f(call.q, size), f(call.out, size), f(call.grad_out, size), f(call.grad_q, size);
}
template <class F> void for_rows_of_keys(Call& call, F f) {
  const int size = bytes_of_element(call.type);
  f(call.k, size), f(call.v, size), f(call.grad_k, size), f(call.grad_v, size);
  f(call.beta, 4), f(call.alpha, 4), f(call.grad_beta, 4), f(call.grad_alpha, 4), f(call.key_padding_mask, 1);
}

// Calls run(call) for each direction. States, which lie head by head in a batch row, must not be given or wanted.
template <class C, class F> void for_directions(C call, bool both_ways, F run) {
  if (!both_ways) return run(call);
  call.heads /= 2;
  run(call);
  const auto turn = [&](auto& rows, int size) {
    advance(rows, call.heads * rows.head + (call.sources - 1) * rows.time, size);
    rows.time = -rows.time;
  };
  for_rows_of_queries(call, turn);
  for_rows_of_keys(call, turn);
  run(call);
}

}  // namespace fwp::gpu
