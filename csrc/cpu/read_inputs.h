// What read_window and read_slots are both given, checked, and how it becomes a call.
#pragma once

#include <cmath>

#include "../common/checks.h"
#include "../common/tensors.h"

namespace fwp {

// Queries, keys and values (B, length, H, d), and the mask of what is read.
struct ReadInputs {
  const char* op;
  Tensor q, k, v;
  OptionalTensor key_padding_mask;

  ReadInputs(const char* op, const Tensor& q, const Tensor& k, const Tensor& v, const OptionalTensor& key_padding_mask)
      : op(op), q(q), k(k), v(v), key_padding_mask(key_padding_mask) {
    check_rank(op, "q", q, 4);
    check_rank(op, "k", k, 4);
    check_type(op, "q", q.scalar_type());
    TORCH_CHECK_VALUE(d() >= 1, op, ": q is of width 0, expected 1 or more");
  }
  void check(const char* name, const Tensor& x, at::IntArrayRef shape) const {
    check_shape(op, name, x, shape);
    check_like(op, name, x, q);
  }
  void check_written(at::IntArrayRef shape) const {
    check("k", k, shape);
    check("v", v, shape);
  }
  void check_pads(int64_t sources) const {
    if (key_padding_mask) check_mask(op, "key_padding_mask", *key_padding_mask, {batch(), sources}, q);
  }
  void make_contiguous() {
    for (Tensor* x : {&q, &k, &v}) *x = with_contiguous_rows(*x);
  }

  int64_t batch() const { return q.size(0); }
  int64_t targets() const { return q.size(1); }
  int64_t heads() const { return q.size(2); }
  int64_t d() const { return q.size(3); }

  template <class C> void describe(C& c) const {
    c.batch = batch();
    c.heads = heads();
    c.targets = targets();
    c.d = d();
    c.scale = 1 / std::sqrt(static_cast<decltype(c.scale)>(d()));
    point(c.q, q);
    point(c.k, k);
    point(c.v, v);
    point(c.key_padding_mask, key_padding_mask);
  }
};

}  // namespace fwp
