// Inputs and results of recur, recur_net and their backwards, checked; fwp_fairseq/ops/recurrence.py says what they compute.
#pragma once

#include <type_traits>

#include "checks.h"
#include "tensors.h"

namespace fwp {

// What all of them are given, checked: x is k, of width d, or the parts, of width 3 d + 1, and the rest has its type.
// Nothing is copied, and no result is made, before all of the operator's arguments have passed: then come the results,
// which are laid out as x is given, and then make_contiguous(). `describe` points the fields of a device's call to them.
struct RecurrentInputs {
  Tensor x;
  int64_t d;
  OptionalTensor key_padding_mask, y;

  RecurrentInputs(const char* op, const char* name, const Tensor& x, int64_t widths,
                  const OptionalTensor& key_padding_mask, const OptionalTensor& y)
      : x(x), key_padding_mask(key_padding_mask), y(y) {
    TORCH_CHECK_VALUE(x.size(3) >= widths && x.size(3) % widths == (widths > 1), op, ": ", name,
                      " is of width ", x.size(3), ", expected ",
                      widths > 1 ? "3 d + 1" : "1 or more");
    d = x.size(3) / widths;
    if (key_padding_mask) check_mask(op, "key_padding_mask", *key_padding_mask, {batch(), length()}, x);
    if (y) check_vector(op, "y", *y);
  }
  void make_contiguous() {
    x = with_contiguous_rows(x);
    y = whole(y);
  }

  int64_t batch() const { return x.size(0); }
  int64_t length() const { return x.size(1); }
  int64_t heads() const { return x.size(2); }

  void check(const char* op, const char* name, const Tensor& given, at::IntArrayRef shape) const {
    check_shape(op, name, given, shape);
    check_like(op, name, given, x);
  }
  void check_rows(const char* op, const char* name, const Tensor& given) const {
    check(op, name, given, {batch(), length(), heads(), d});
  }
  void check_vector(const char* op, const char* name, const Tensor& given) const {
    check(op, name, given, {batch(), heads(), d});
  }
  void check_matrix(const char* op, const char* name, const Tensor& given) const {
    check(op, name, given, {batch(), heads(), d, d});
  }
  Tensor new_matrix() const { return at::empty({batch(), heads(), d, d}, x.options()); }
  Tensor new_vector() const { return at::empty({batch(), heads(), d}, x.options()); }

  template <class C> void describe(C& c) const {
    const auto set = [](auto& to, auto x) { to = static_cast<std::remove_reference_t<decltype(to)>>(x); };
    set(c.batch, batch());
    set(c.heads, heads());
    set(c.length, length());
    set(c.d, d);
    point(c.key_padding_mask, key_padding_mask);
    point(c.initial_y, y);
  }
};

// What recur and its backward are given, checked.
struct RecurrenceInputs : RecurrentInputs {
  Tensor v, beta;

  RecurrenceInputs(const char* op, const Tensor& k, const Tensor& v, const Tensor& beta,
                   const OptionalTensor& key_padding_mask, const OptionalTensor& y)
      : RecurrentInputs(op, "k", k, 1, key_padding_mask, y), v(v), beta(beta) {
    check_rows(op, "v", v);
    check(op, "beta", beta, {batch(), length(), heads()});
  }
  void make_contiguous() {
    RecurrentInputs::make_contiguous();
    v = with_contiguous_rows(v);
  }

  template <class C> void describe(C& c) const {
    RecurrentInputs::describe(c);
    point(c.k, x);
    point(c.v, v);
    point(c.beta, beta);
  }
};

// What recur_net and its backward are given, checked. How the weight is laid out is the device's choice.
struct NetInputs : RecurrentInputs {
  Tensor weight;
  double largest, eps;

  NetInputs(const char* op, const char* name, const Tensor& parts, const Tensor& weight,
            const OptionalTensor& key_padding_mask, const OptionalTensor& y, double largest, double eps)
      : RecurrentInputs(op, name, parts, 3, key_padding_mask, y), weight(weight), largest(largest), eps(eps) {
    TORCH_CHECK_VALUE(largest <= 80, op, ": largest is ", largest, ", expected 80 or less");
    check(op, "weight", weight, {heads(), d, x.size(3)});
  }

  template <class C> void describe(C& c) const {
    RecurrentInputs::describe(c);
    c.largest = static_cast<decltype(c.largest)>(largest);
    c.eps = static_cast<decltype(c.eps)>(eps);
    point(c.weight, weight);
  }
};

// What a forward gives, and the matrix that it begins with, whose name is R or W.
struct RecurrentResults {
  OptionalTensor initial;
  Tensor out, written, last, y;

  RecurrentResults(const char* op, const char* name, const RecurrentInputs& in, const OptionalTensor& given) {
    if (given) in.check_matrix(op, name, *given);
    out = new_rows(in.x, in.d);
    written = new_rows(in.x, in.d);
    last = in.new_matrix();
    y = in.new_vector();
    initial = whole(given);
  }

  template <class C> void describe(C& c) const {
    point(c.initial_R, initial);
    point(c.out, out);
    point(c.written, written);
    point(c.R, last);
    point(c.y, y);
  }
};

// What a backward is given beside its inputs, checked, and the gradients of the initial state that it gives.
struct RecurrentGradients {
  Tensor grad_out, found, written, last, initial, initial_y;
  OptionalTensor grad, grad_y;

  RecurrentGradients(const char* op, const RecurrentInputs& in, const Tensor& given_out, const char* grad_name,
                     const OptionalTensor& given, const OptionalTensor& given_y, const Tensor& found,
                     const char* last_name, const Tensor& last, const Tensor& written) {
    in.check_rows(op, "grad_out", given_out);
    in.check_rows(op, "found", found);
    in.check_rows(op, "written", written);
    in.check_matrix(op, last_name, last);
    if (given) in.check_matrix(op, grad_name, *given);
    if (given_y) in.check_vector(op, "grad_y", *given_y);
    initial = in.new_matrix();
    initial_y = in.new_vector();
    grad_out = with_contiguous_rows(given_out);
    this->found = with_contiguous_rows(found);
    this->written = with_contiguous_rows(written);
    this->last = last.contiguous();
    grad = whole(given);
    grad_y = whole(given_y);
  }

  template <class C> void describe(C& c) const {
    point(c.found, found);
    point(c.found_written, written);
    point(c.last_R, last);
    point(c.grad_out, grad_out);
    point(c.grad_R, grad);
    point(c.grad_y, grad_y);
    point(c.grad_initial_R, initial);
    point(c.grad_initial_y, initial_y);
  }
};

}  // namespace fwp
