// Converts tensors to the rows and pointers that the kernels of every device read and write, and allocates results.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <optional>
#include <type_traits>

namespace fwp {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

inline bool has_contiguous_rows(const Tensor& x) { return x.size(-1) <= 1 || x.stride(-1) == 1; }
inline bool begins_at_16_bytes(const Tensor& x) {
  return reinterpret_cast<std::uintptr_t>(x.const_data_ptr()) % 16 == 0;
}
// Returns true if two contiguous tensors overlap in memory; their types may differ.
inline bool share_memory(const Tensor& x, const Tensor& y) {
  const auto begin = [](const Tensor& t) { return reinterpret_cast<std::uintptr_t>(t.const_data_ptr()); };
  return x.numel() && y.numel() && begin(x) < begin(y) + y.nbytes() && begin(y) < begin(x) + x.nbytes();
}

// Allocates (B, L, H, width) with batch and time ordered as in x, so that fairseq's (T, B, C) is a view of it.
inline Tensor new_rows(const Tensor& x, int64_t width, at::ScalarType type) {
  const int64_t B = x.size(0), L = x.size(1), H = x.size(2);
  const at::TensorOptions options = x.options().dtype(type);
  if (x.stride(1) > x.stride(0)) return at::empty({L, B, H, width}, options).transpose(0, 1);
  return at::empty({B, L, H, width}, options);
}

// point(to, x) makes `to`, a pointer or a device's Rows, refer to x, whose type the caller has checked. It asks torch
// for writable data only if the elements of `to` are not const.
template <class V> V* data_of(const Tensor& x) {
  if constexpr (std::is_const_v<V>) return static_cast<V*>(x.const_data_ptr());
  else return static_cast<V*>(x.mutable_data_ptr());
}
template <class V> void point(V*& to, const Tensor& x) { to = x.numel() ? data_of<V>(x) : nullptr; }

template <class Rows, class = void> constexpr bool knows_alignment = false;
template <class Rows> constexpr bool knows_alignment<Rows, std::void_t<decltype(Rows::aligned)>> = true;

template <class Rows> void point(Rows& to, const Tensor& x) {
  to.data = data_of<std::remove_pointer_t<decltype(to.data)>>(x);
  to.batch = x.stride(0);
  to.time = x.stride(1);
  to.head = x.dim() > 2 ? x.stride(2) : 0;
  if constexpr (knows_alignment<Rows>)
    to.aligned = x.dim() == 4 && (x.size(3) | to.batch | to.time | to.head) % 8 == 0 && begins_at_16_bytes(x);
}

}  // namespace fwp
