// One call of the operator as plain pointers: what the kernels see instead of tensors. No torch header.
#pragma once

#include <cstddef>
#include <cstdint>

#include "../common/maps.h"
#include "../common/rules.h"

namespace fwp {

// A (B, length, H, width) tensor; its last dimension is contiguous, other strides are free.
template <class T>
struct Rows {
  T* data = nullptr;
  std::ptrdiff_t batch = 0, time = 0, head = 0;

  T* at(std::ptrdiff_t b, std::ptrdiff_t t, std::ptrdiff_t h) const { return data + b * batch + t * time + h * head; }
  explicit operator bool() const { return data != nullptr; }
};

// True if position t of row b is a pad.
static inline bool is_pad(const Rows<const bool>& mask, std::ptrdiff_t b, std::ptrdiff_t t) {
  return mask && *mask.at(b, t, 0);
}

// T: the type of all numbers.
// Shapes as in fwp_fairseq/ops/fast_weights.py. States are contiguous: W (B, H, d_dot, d_value), z (B, H, d_dot).
template <class T>
struct Call {
  Rule rule;
  Map map;
  std::ptrdiff_t nu = 0, m = 0;    // see Width
  const T* projection = nullptr;   // (m, d_key), contiguous
  T input_scale = 1;               // the factor of the inputs that the projection multiplies
  bool causal, normalize_features, normalize_output;
  T eps;
  std::ptrdiff_t batch, heads, targets, sources, d_key, d_value, d_dot;

  Rows<const T> q, k, v;
  Rows<const T> beta, alpha;
  Rows<const bool> key_padding_mask;  // (B, S) with head stride 0; null: no padding
  const T *initial_W = nullptr, *initial_z = nullptr;

  // forward: W and z are null if the state is not requested
  Rows<T> out;
  T *W = nullptr, *z = nullptr;

  // backward: the gradients of the results (grad_W and grad_z are null for zeros), and those to compute
  Rows<const T> grad_out;
  const T *grad_W = nullptr, *grad_z = nullptr;
  Rows<T> grad_q, grad_k, grad_v;
  Rows<T> grad_beta, grad_alpha;
  T *grad_initial_W = nullptr, *grad_initial_z = nullptr;
};

// Returns the same call with the tokens in reverse order; it must have as many queries as keys.
template <class T> Call<T> reversed(Call<T> c) {
  const auto turn = [&](auto&... rows) {
    ((rows ? (rows.data += (c.sources - 1) * rows.time, rows.time = -rows.time) : 0), ...);
  };
  if (c.sources > 0)
    turn(c.q, c.k, c.v, c.beta, c.alpha, c.key_padding_mask, c.out, c.grad_out, c.grad_q, c.grad_k, c.grad_v,
         c.grad_beta, c.grad_alpha);
  return c;
}

}  // namespace fwp
