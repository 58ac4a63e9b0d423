// recur, recur_net and their backwards on the CPU; fwp_fairseq/ops/recurrence.py says what they compute.
#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <torch/library.h>

#include <tuple>

#include "../common/checks.h"
#include "../common/tensors.h"
#include "capability.h"
#include "glue.h"

namespace fwp {
namespace {

// What all of them are given, checked: x is k, of width d, or the parts, of width 3 d + 1, and the rest has its type.
// Nothing is copied, and no result is made, before all of the operator's arguments have passed: then come the results,
// which are laid out as x is given, and then make_contiguous().
struct RecurrentInputs {
  Tensor x;
  int64_t d;
  OptionalTensor key_padding_mask, y;

  RecurrentInputs(const char* op, const char* name, const Tensor& x, int64_t widths,
                  const OptionalTensor& key_padding_mask, const OptionalTensor& y)
      : x(x), key_padding_mask(key_padding_mask), y(y) {
    check_rank(op, name, x, 4);
    check_type(op, name, x.scalar_type());
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

  template <class T> RecurrenceCall<T> call() const {
    RecurrenceCall<T> c{};
    c.batch = batch();
    c.heads = heads();
    c.length = length();
    c.d = d;
    point(c.key_padding_mask, key_padding_mask);
    point(c.initial_y, y);
    return c;
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

  template <class T> RecurrenceCall<T> call() const {
    auto c = RecurrentInputs::call<T>();
    point(c.k, x);
    point(c.v, v);
    point(c.beta, beta);
    return c;
  }
};

template <class T>
void run(const RecurrenceCall<T>& c, void (*head)(const RecurrenceCall<T>&, std::ptrdiff_t, std::ptrdiff_t, T*)) {
  if (c.batch == 0 || c.heads == 0) return;  // then d may be of any size, also one for which no scratch is large enough
  const std::size_t size = chosen_recurrence_kernels<T>().scratch(c);
  at::parallel_for(0, c.batch * c.heads, 1, [&](int64_t first, int64_t last) {
    T* own = scratch<T>(size);
    for (int64_t i = first; i < last; ++i) head(c, i / c.heads, i % c.heads, own);
  });
}

// What a forward gives, and the matrix that it begins with, whose name is R or W.
struct Forward {
  OptionalTensor initial;
  Tensor out, written, last, y;

  Forward(const char* op, const char* name, const RecurrentInputs& in, const OptionalTensor& given) {
    if (given) in.check_matrix(op, name, *given);
    out = new_rows(in.x, in.d);
    written = new_rows(in.x, in.d);
    last = in.new_matrix();
    y = in.new_vector();
    initial = whole(given);
  }

  template <class T> void describe(RecurrenceCall<T>& c) const {
    point(c.initial_R, initial);
    point(c.out, out);
    point(c.written, written);
    point(c.R, last);
    point(c.y, y);
  }
};

// What a backward is given beside its inputs, checked, and the gradients of the initial state that it gives.
struct Backward {
  Tensor grad_out, found, written, last, initial, initial_y;
  OptionalTensor grad, grad_y;

  Backward(const char* op, const RecurrentInputs& in, const Tensor& given_out, const char* grad_name,
           const OptionalTensor& given, const OptionalTensor& given_y, const Tensor& found, const char* last_name,
           const Tensor& last, const Tensor& written) {
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

  template <class T> void describe(RecurrenceCall<T>& c) const {
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

std::tuple<Tensor, Tensor, Tensor, Tensor> recur(const Tensor& given_z, const Tensor& k, const Tensor& v,
                                                 const Tensor& beta, const OptionalTensor& key_padding_mask,
                                                 const OptionalTensor& given_R, const OptionalTensor& y) {
  static constexpr char op[] = "fwp::recur";
  RecurrenceInputs in(op, k, v, beta, key_padding_mask, y);
  in.check_rows(op, "z", given_z);
  const Forward found(op, "R", in, given_R);
  const Tensor z = with_contiguous_rows(given_z);
  in.make_contiguous();
  AT_DISPATCH_FLOATING_TYPES(in.x.scalar_type(), op, [&] {
    auto c = in.call<scalar_t>();
    point(c.z, z);
    found.describe(c);
    run(c, chosen_recurrence_kernels<scalar_t>().forward);
  });
  return {found.out, found.last, found.y, found.written};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> recur_backward(
    const Tensor& given_out, const OptionalTensor& given_R, const OptionalTensor& given_y, const Tensor& found,
    const Tensor& last_R, const Tensor& written, const Tensor& k, const Tensor& v, const Tensor& beta,
    const OptionalTensor& key_padding_mask, const OptionalTensor& y) {
  static constexpr char op[] = "fwp::recur_backward";
  RecurrenceInputs in(op, k, v, beta, key_padding_mask, y);
  const Backward back(op, in, given_out, "grad_R", given_R, given_y, found, "last_R", last_R, written);
  const Tensor grad_z = new_rows(k), grad_k = new_rows(k), grad_v = new_rows(k), grad_beta = new_rows(beta);
  in.make_contiguous();
  AT_DISPATCH_FLOATING_TYPES(in.x.scalar_type(), op, [&] {
    auto c = in.call<scalar_t>();
    back.describe(c);
    point(c.grad_z, grad_z);
    point(c.grad_k, grad_k);
    point(c.grad_v, grad_v);
    point(c.grad_beta, grad_beta);
    run(c, chosen_recurrence_kernels<scalar_t>().backward);
  });
  return {grad_z, grad_k, grad_v, grad_beta, back.initial, back.initial_y};
}

// What recur_net and its backward are given, checked.
struct NetInputs : RecurrentInputs {
  Tensor weight;
  double largest, eps;

  NetInputs(const char* op, const char* name, const Tensor& parts, const Tensor& weight,
            const OptionalTensor& key_padding_mask, const OptionalTensor& y, double largest, double eps)
      : RecurrentInputs(op, name, parts, 3, key_padding_mask, y), weight(weight), largest(largest), eps(eps) {
    TORCH_CHECK_VALUE(largest <= 80, op, ": largest is ", largest, ", expected 80 or less");
    check(op, "weight", weight, {heads(), d, x.size(3)});
  }
  void make_contiguous() {
    RecurrentInputs::make_contiguous();
    weight = weight.contiguous();
  }

  template <class T> RecurrenceCall<T> call() const {
    auto c = RecurrentInputs::call<T>();
    c.largest = static_cast<T>(largest);
    c.eps = static_cast<T>(eps);
    point(c.parts, x);
    point(c.weight, weight);
    return c;
  }
};

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> recur_net(const Tensor& parts, const Tensor& weight,
                                                             const OptionalTensor& key_padding_mask,
                                                             const OptionalTensor& given_W, const OptionalTensor& y,
                                                             double largest, double eps) {
  static constexpr char op[] = "fwp::recur_net";
  NetInputs in(op, "parts", parts, weight, key_padding_mask, y, largest, eps);
  const Forward found(op, "W", in, given_W);
  const Tensor fed = new_rows(parts);
  in.make_contiguous();
  AT_DISPATCH_FLOATING_TYPES(in.x.scalar_type(), op, [&] {
    auto c = in.call<scalar_t>();
    point(c.fed_parts, fed);
    found.describe(c);
    run(c, chosen_recurrence_kernels<scalar_t>().net_forward);
  });
  return {found.out, found.last, found.y, found.written, fed};
}

std::tuple<Tensor, Tensor, Tensor> recur_net_backward(const Tensor& given_out, const OptionalTensor& given_W,
                                                      const OptionalTensor& given_y, const Tensor& found,
                                                      const Tensor& last_W, const Tensor& written, const Tensor& fed,
                                                      const Tensor& weight, const OptionalTensor& key_padding_mask,
                                                      const OptionalTensor& y, double largest, double eps) {
  static constexpr char op[] = "fwp::recur_net_backward";
  NetInputs in(op, "fed", fed, weight, key_padding_mask, y, largest, eps);
  const Backward back(op, in, given_out, "grad_W", given_W, given_y, found, "last_W", last_W, written);
  const Tensor grad_parts = new_rows(fed);
  in.make_contiguous();
  AT_DISPATCH_FLOATING_TYPES(in.x.scalar_type(), op, [&] {
    auto c = in.call<scalar_t>();
    point(c.found_parts, in.x);
    back.describe(c);
    point(c.grad_parts, grad_parts);
    run(c, chosen_recurrence_kernels<scalar_t>().net_backward);
  });
  return {grad_parts, back.initial, back.initial_y};
}

}  // namespace

TORCH_LIBRARY_IMPL(fwp, CPU, m) {
  m.impl("recur_net", &recur_net);
  m.impl("recur_net_backward", &recur_net_backward);
  m.impl("recur", &recur);
  m.impl("recur_backward", &recur_backward);
}

}  // namespace fwp
