// The tensors of one call of an operator. Each is checked, and the field of the device's call that stands for it is
// pointed to it. A tensor that kernels cannot read as it lies in memory is copied, but only when all arguments have
// passed.
#pragma once

#include <functional>
#include <vector>

#include "checks.h"
#include "tensors.h"

namespace fwp {

class Fields {
 public:
  const char* const op;

  // `like` has the device of all tensors and the type of rows; other numbers have state_type of it.
  Fields(const char* op, const Tensor& like) : op(op), like(like) {}

  void check(const char* name, const Tensor& x, at::IntArrayRef shape) const {
    check_shape(op, name, x, shape);
    check_like(op, name, x, like);
  }
  // (B, L, H, width), whose rows a kernel reads as they lie in memory.
  template <class R> void rows(const char* name, const Tensor& x, R& field, at::IntArrayRef shape) {
    check(name, x, shape);
    if (has_contiguous_rows(x)) point(field, x);
    else copy(x, field);
  }
  // (B, L, H): a number for each position and head.
  template <class R> void gate(const char* name, const Tensor& x, R& field, at::IntArrayRef shape) {
    check_shape(op, name, x, shape);
    check_state(op, name, x, like);
    point(field, x);
  }
  // True where a position is to be ignored; may be missing.
  template <class R> void mask(const OptionalTensor& x, R& field, at::IntArrayRef shape) {
    if (!x) return;
    check_mask(op, "key_padding_mask", *x, shape, like);
    point(field, *x);
  }
  // A contiguous tensor; may be missing.
  template <class V> void whole(const char* name, const OptionalTensor& x, V*& field, at::IntArrayRef shape) {
    if (!x) return;
    check_shape(op, name, *x, shape);
    check_state(op, name, *x, like);
    if (!x->is_contiguous() || !begins_at_16_bytes(*x)) copy(*x, field);
    else point(field, *x);
  }
  // A tensor of a cache, which is read, and by decoding written, where it stands.
  template <class V>
  void held(const char* name, const Tensor& x, V*& field, at::IntArrayRef shape, at::ScalarType type) {
    check_shape(op, name, x, shape);
    TORCH_CHECK_VALUE(x.scalar_type() == type, op, ": ", name, " is of type ", x.scalar_type(), ", expected ", type);
    TORCH_CHECK_VALUE(x.is_contiguous(), op, ": ", name, " is not contiguous, expected a contiguous tensor");
    check_device(op, name, x, like);
    field = data_of<V>(x);
  }

  // Results to be written: of x's shape and memory layout but `width` wide, of the shape of gate x, and contiguous.
  template <class R> Tensor new_rows(R& field, const Tensor& x, int64_t width) {
    return result(field, fwp::new_rows(x, width));
  }
  template <class R> Tensor new_gate(R& field, const Tensor& x) {
    return result(field, fwp::new_rows(x, 1).squeeze(3));
  }
  template <class V> Tensor new_whole(V*& field, at::IntArrayRef shape) {
    return result(field, at::empty(shape, like.options().dtype(state_type(like))));
  }

  // Makes the copies, and returns whether any result has an element. If none has one, the kernel must not run, because
  // its other sizes may be larger than it can count.
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
