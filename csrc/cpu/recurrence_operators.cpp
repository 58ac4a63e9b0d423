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
struct RecurrentInputs {
  Tensor x;
  int64_t d;
  OptionalTensor key_padding_mask, y;

  RecurrentInputs(const char* op, const char* name, const Tensor& given, int64_t widths,
                  const OptionalTensor& key_padding_mask, const OptionalTensor& given_y)
      : x(given), key_padding_mask(key_padding_mask) {
    check_rank(op, name, x, 4);
    check_type(op, name, x.scalar_type());
    TORCH_CHECK_VALUE(x.size(3) >= widths && x.size(3) % widths == (widths > 1), op, ": ", name,
                      widths > 1 ? " are" : " is", " of width ", x.size(3), ", expected ",
                      widths > 1 ? "3 d + 1" : "1 or more");
    d = x.size(3) / widths;
    if (key_padding_mask) check_mask(op, "key_padding_mask", *key_padding_mask, {batch(), length()}, x);
    if (given_y) check_vector(op, "y", *given_y);
    x = with_contiguous_rows(x);
    y = whole(given_y);
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

  RecurrenceInputs(const char* op, const Tensor& k, const Tensor& given_v, const Tensor& beta,
                   const OptionalTensor& key_padding_mask, const OptionalTensor& y)
      : RecurrentInputs(op, "k", k, 1, key_padding_mask, y), v(given_v), beta(beta) {
    check_rows(op, "v", v);
    check(op, "beta", beta, {batch(), length(), heads()});
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
  const std::size_t size = chosen_recurrence_kernels<T>().scratch(c);
  at::parallel_for(0, c.batch * c.heads, 1, [&](int64_t first, int64_t last) {
    T* own = scratch<T>(size);
    for (int64_t i = first; i < last; ++i) head(c, i / c.heads, i % c.heads, own);
  });
}

std::tuple<Tensor, Tensor, Tensor, Tensor> recur(const Tensor& given_z, const Tensor& k, const Tensor& v,
                                                 const Tensor& beta, const OptionalTensor& key_padding_mask,
                                                 const OptionalTensor& given_R, const OptionalTensor& y) {
  static constexpr char op[] = "fwp::recur";
  const RecurrenceInputs in(op, k, v, beta, key_padding_mask, y);
  in.check_rows(op, "z", given_z);
  if (given_R) in.check_matrix(op, "R", *given_R);
  const Tensor z = with_contiguous_rows(given_z);
  const OptionalTensor R = whole(given_R);
  const Tensor out = new_rows(z), written = new_rows(z), last_R = in.new_matrix(), last_y = in.new_vector();
  AT_DISPATCH_FLOATING_TYPES(in.x.scalar_type(), op, [&] {
    auto c = in.call<scalar_t>();
    point(c.z, z);
    point(c.initial_R, R);
    point(c.out, out);
    point(c.written, written);
    point(c.R, last_R);
    point(c.y, last_y);
    run(c, chosen_recurrence_kernels<scalar_t>().forward);
  });
  return {out, last_R, last_y, written};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> recur_backward(
    const Tensor& given_out, const OptionalTensor& given_R, const OptionalTensor& given_y, const Tensor& found,
    const Tensor& last_R, const Tensor& written, const Tensor& k, const Tensor& v, const Tensor& beta,
    const OptionalTensor& key_padding_mask, const OptionalTensor& y) {
  static constexpr char op[] = "fwp::recur_backward";
  const RecurrenceInputs in(op, k, v, beta, key_padding_mask, y);
  in.check_rows(op, "grad_out", given_out);
  in.check_rows(op, "found", found);
  in.check_rows(op, "written", written);
  in.check_matrix(op, "last_R", last_R);
  if (given_R) in.check_matrix(op, "grad_R", *given_R);
  if (given_y) in.check_vector(op, "grad_y", *given_y);
  const Tensor grad_out = with_contiguous_rows(given_out), out = with_contiguous_rows(found);
  const Tensor u = with_contiguous_rows(written), R = last_R.contiguous();
  const OptionalTensor grad_R = whole(given_R), grad_y = whole(given_y);
  const Tensor grad_z = new_rows(in.x), grad_k = new_rows(in.x), grad_v = new_rows(in.x), grad_beta = new_rows(beta);
  const Tensor initial_R = in.new_matrix(), initial_y = in.new_vector();
  AT_DISPATCH_FLOATING_TYPES(in.x.scalar_type(), op, [&] {
    auto c = in.call<scalar_t>();
    point(c.found, out);
    point(c.found_written, u);
    point(c.last_R, R);
    point(c.grad_out, grad_out);
    point(c.grad_R, grad_R);
    point(c.grad_y, grad_y);
    point(c.grad_z, grad_z);
    point(c.grad_k, grad_k);
    point(c.grad_v, grad_v);
    point(c.grad_beta, grad_beta);
    point(c.grad_initial_R, initial_R);
    point(c.grad_initial_y, initial_y);
    run(c, chosen_recurrence_kernels<scalar_t>().backward);
  });
  return {grad_z, grad_k, grad_v, grad_beta, initial_R, initial_y};
}

// What recur_net and its backward are given, checked.
struct NetInputs : RecurrentInputs {
  Tensor weight;
  double largest, eps;

  NetInputs(const char* op, const Tensor& parts, const Tensor& given_weight, const OptionalTensor& key_padding_mask,
            const OptionalTensor& y, double largest, double eps)
      : RecurrentInputs(op, "parts", parts, 3, key_padding_mask, y), weight(given_weight), largest(largest), eps(eps) {
    TORCH_CHECK_VALUE(largest <= 80, op, ": largest is ", largest, ", expected 80 or less");
    check(op, "weight", weight, {heads(), d, x.size(3)});
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
  const NetInputs in(op, parts, weight, key_padding_mask, y, largest, eps);
  if (given_W) in.check_matrix(op, "W", *given_W);
  const OptionalTensor W = whole(given_W);
  const Tensor out = new_rows(in.x, in.d), written = new_rows(in.x, in.d), fed = new_rows(in.x);
  const Tensor last_W = in.new_matrix(), last_y = in.new_vector();
  AT_DISPATCH_FLOATING_TYPES(in.x.scalar_type(), op, [&] {
    auto c = in.call<scalar_t>();
    point(c.initial_R, W);
    point(c.out, out);
    point(c.written, written);
    point(c.fed_parts, fed);
    point(c.R, last_W);
    point(c.y, last_y);
    run(c, chosen_recurrence_kernels<scalar_t>().net_forward);
  });
  return {out, last_W, last_y, written, fed};
}

std::tuple<Tensor, Tensor, Tensor> recur_net_backward(const Tensor& given_out, const OptionalTensor& given_W,
                                                      const OptionalTensor& given_y, const Tensor& found,
                                                      const Tensor& last_W, const Tensor& written, const Tensor& fed,
                                                      const Tensor& weight, const OptionalTensor& key_padding_mask,
                                                      const OptionalTensor& y, double largest, double eps) {
  static constexpr char op[] = "fwp::recur_net_backward";
  const NetInputs in(op, fed, weight, key_padding_mask, y, largest, eps);
  in.check_rows(op, "grad_out", given_out);
  in.check_rows(op, "found", found);
  in.check_rows(op, "written", written);
  in.check_matrix(op, "last_W", last_W);
  if (given_W) in.check_matrix(op, "grad_W", *given_W);
  if (given_y) in.check_vector(op, "grad_y", *given_y);
  const Tensor grad_out = with_contiguous_rows(given_out), out = with_contiguous_rows(found);
  const Tensor u = with_contiguous_rows(written), W = last_W.contiguous();
  const OptionalTensor grad_W = whole(given_W), grad_y = whole(given_y);
  const Tensor grad_parts = new_rows(in.x), initial_W = in.new_matrix(), initial_y = in.new_vector();
  AT_DISPATCH_FLOATING_TYPES(in.x.scalar_type(), op, [&] {
    auto c = in.call<scalar_t>();
    point(c.found_parts, in.x);
    point(c.found, out);
    point(c.found_written, u);
    point(c.last_R, W);
    point(c.grad_out, grad_out);
    point(c.grad_R, grad_W);
    point(c.grad_y, grad_y);
    point(c.grad_parts, grad_parts);
    point(c.grad_initial_R, initial_W);
    point(c.grad_initial_y, initial_y);
    run(c, chosen_recurrence_kernels<scalar_t>().net_backward);
  });
  return {grad_parts, initial_W, initial_y};
}

}  // namespace

TORCH_LIBRARY_IMPL(fwp, CPU, m) {
  m.impl("recur_net", &recur_net);
  m.impl("recur_net_backward", &recur_net_backward);
  m.impl("recur", &recur);
  m.impl("recur_backward", &recur_backward);
}

}  // namespace fwp
