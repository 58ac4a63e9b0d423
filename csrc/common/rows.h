// Tensors whose rows, along the last dimension, the kernels of every device read and write.
#pragma once

#include <ATen/ATen.h>

#include <optional>

namespace fwp {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

inline Tensor with_contiguous_rows(const Tensor& x) {
  return x.size(-1) > 1 && x.stride(-1) != 1 ? x.contiguous() : x;
}

// New (B, L, H, width) tensor in x's order of batch and time, so that fairseq's (T, B, C) goes on as a view.
inline Tensor new_rows(const Tensor& x, int64_t width) {
  const int64_t B = x.size(0), L = x.size(1), H = x.size(2);
  if (x.stride(1) > x.stride(0)) return at::empty({L, B, H, width}, x.options()).transpose(0, 1);
  return at::empty({B, L, H, width}, x.options());
}
inline Tensor new_rows(const Tensor& x) {  // of x's shape, which may lack the last dimension (beta)
  return x.dim() == 3 ? new_rows(x, 1).squeeze(3) : new_rows(x, x.size(3));
}

}  // namespace fwp
