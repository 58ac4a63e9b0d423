// Checks of inputs for every device. The messages name the operator, the tensor, and the expected and the actual value.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

namespace fwp {

inline void check_given(const char* op, const char* name, const at::Tensor& x) {  // None arrives as an undefined tensor
  TORCH_CHECK_VALUE(x.defined(), op, ": ", name, " is None, expected a tensor");
}

inline void check_shape(const char* op, const char* name, const at::Tensor& x, at::IntArrayRef expected) {
  check_given(op, name, x);
  TORCH_CHECK_VALUE(x.sizes() == expected, op, ": ", name, " is of shape ", x.sizes(), ", expected ", expected);
}

inline void check_device(const char* op, const char* name, const at::Tensor& x, const at::Tensor& q) {
  TORCH_CHECK_VALUE(x.device() == q.device(), op, ": ", name, " is on ", x.device(), ", expected ", q.device());
}

inline void check_is(const char* op, const char* name, const at::Tensor& x, at::ScalarType type) {
  TORCH_CHECK_VALUE(x.scalar_type() == type, op, ": ", name, " is of type ", x.scalar_type(), ", expected ", type);
}

inline void check_like(const char* op, const char* name, const at::Tensor& x, const at::Tensor& q) {
  check_is(op, name, x, q.scalar_type());
  check_device(op, name, x, q);
}

// The type of states and of computations with them, like state_type in fwp_fairseq/numerics.py.
inline at::ScalarType state_type(const at::Tensor& q) {
  return q.scalar_type() == at::kBFloat16 || q.scalar_type() == at::kHalf ? at::kFloat : q.scalar_type();
}

inline void check_state(const char* op, const char* name, const at::Tensor& x, const at::Tensor& q) {
  TORCH_CHECK_VALUE(x.scalar_type() == state_type(q), op, ": ", name, " is of type ", x.scalar_type(), ", expected ",
                    state_type(q), " for inputs of type ", q.scalar_type());
  check_device(op, name, x, q);
}

inline void check_type(const char* op, const char* name, at::ScalarType type) {
  TORCH_CHECK_VALUE(type == at::kFloat || type == at::kDouble, op, ": ", name, " is of type ", type,
                    ", expected Float or Double");
}

inline void check_mask(const char* op, const char* name, const at::Tensor& x, at::IntArrayRef expected,
                       const at::Tensor& q) {
  check_shape(op, name, x, expected);
  TORCH_CHECK_VALUE(x.scalar_type() == at::kBool, op, ": ", name, " is of type ", x.scalar_type(), ", expected Bool");
  check_device(op, name, x, q);
}

inline void check_rank(const char* op, const char* name, const at::Tensor& x, int64_t expected) {
  check_given(op, name, x);
  TORCH_CHECK_VALUE(x.dim() == expected, op, ": ", name, " is of shape ", x.sizes(), ", expected ", expected,
                    " dimensions");
}

}  // namespace fwp
