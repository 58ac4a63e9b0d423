// The tensors of one call of an operator. Fields checks each tensor and makes a field of the device's call refer to it.
// A tensor whose memory layout kernels cannot read is copied, but only after all arguments have passed their checks.
#pragma once

#include <functional>
#include <vector>

#include "checks.h"
#include "tensors.h"

namespace fwp {

class Fields {
 public:
  const char* const op;

  // All tensors are on the device of `like`. Rows have its type, or a named one; gates and states have the type
  // state_type(like).
  Fields(const char* op, const Tensor& like) : op(op), like(like) {}

  // A tensor (B, L, H, width); it is copied if its rows are not contiguous.
  template <class R> void rows(const char* name, const Tensor& x, R& field, at::IntArrayRef shape) {
    rows(name, x, field, shape, like.scalar_type());
  }
  template <class R>
  void rows(const char* name, const Tensor& x, R& field, at::IntArrayRef shape, at::ScalarType type) {
    check_shape(op, name, x, shape);
    check_is(op, name, x, type);
    check_device(op, name, x, like);
    if (has_contiguous_rows(x)) point(field, x);
    else copy(x, field);
  }
  // A tensor (B, L, H) with one number for each position and head.
  template <class R> void gate(const char* name, const Tensor& x, R& field, at::IntArrayRef shape) {
    check_shape(op, name, x, shape);
    check_state(op, name, x, like);
    point(field, x);
  }
  // An optional mask, True at positions that are ignored.
  template <class R> void mask(const OptionalTensor& x, R& field, at::IntArrayRef shape) {
    if (!x) return;
    check_mask(op, "key_padding_mask", *x, shape, like);
    point(field, *x);
  }
  // An optional tensor that kernels read as one contiguous, aligned block; it is copied if it is not one.
  template <class V> void whole(const char* name, const OptionalTensor& x, V*& field, at::IntArrayRef shape) {
    if (!x) return;
    check_shape(op, name, *x, shape);
    check_state(op, name, *x, like);
    if (!x->is_contiguous() || !begins_at_16_bytes(*x)) copy(*x, field);
    else point(field, *x);
  }
  // A tensor of a cache. It is never copied, because decoding writes to it.
  template <class V>
  void held(const char* name, const Tensor& x, V*& field, at::IntArrayRef shape, at::ScalarType type) {
    check_shape(op, name, x, shape);
    check_is(op, name, x, type);
    TORCH_CHECK_VALUE(x.is_contiguous(), op, ": ", name, " is not contiguous, expected a contiguous tensor");
    check_device(op, name, x, like);
    field = data_of<V>(x);
  }

  // Allocate results: rows like x but of another width, a gate like x, and a contiguous tensor.
  template <class R> Tensor new_rows(R& field, const Tensor& x, int64_t width) {
    return new_rows(field, x, width, x.scalar_type());
  }
  template <class R> Tensor new_rows(R& field, const Tensor& x, int64_t width, at::ScalarType type) {
    return result(field, fwp::new_rows(x, width, type));
  }
  template <class R> Tensor new_gate(R& field, const Tensor& x) {
    return result(field, fwp::new_rows(x, 1, x.scalar_type()).squeeze(3));
  }
  template <class V> Tensor new_whole(V*& field, at::IntArrayRef shape) {
    return result(field, at::empty(shape, like.options().dtype(state_type(like))));
  }

  // Makes the copies, and returns true if any result has elements. If none has, the kernel must not run, because its
  // other sizes may be too large for its counters.
  bool ready() {
    for (const auto& make : copies) make();
    copies.clear();
    return computes;
  }

 private:
  template <class Field> void copy(const Tensor& x, Field& field) {
    copies.push_back([this, x, &field] {
      kept.push_back(x.is_contiguous() ? x.clone() : x.contiguous());
      point(field, kept.back());
    });
  }
  template <class Field> Tensor result(Field& field, const Tensor& x) {
    point(field, x);
    computes = computes || x.numel() > 0;
    return x;
  }

  const Tensor& like;
  bool computes = false;
  std::vector<std::function<void()>> copies;
  std::vector<Tensor> kept;
};

}  // namespace fwp
