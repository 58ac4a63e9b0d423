// read_window and its backward on the CPU: inputs checked, results made, and one task for each batch row and head.
#include <ATen/Dispatch.h>
#include <torch/library.h>

#include <cmath>
#include <tuple>

#include "../common/checks.h"
#include "../common/tensors.h"
#include "capability.h"
#include "glue.h"

namespace fwp {
namespace {

// What both operators are given, checked; then copied where the kernels could not read it.
struct WindowInputs {
  const char* op;
  Tensor q, k, v, u, bias;
  OptionalTensor sums, key_padding_mask, places;
  int64_t size;

  WindowInputs(const char* op, const Tensor& q, const Tensor& k, const Tensor& v, const OptionalTensor& sums,
               const Tensor& u, const Tensor& bias, const OptionalTensor& key_padding_mask,
               const OptionalTensor& places, int64_t size)
      : op(op), q(q), k(k), v(v), u(u), bias(bias), sums(sums), key_padding_mask(key_padding_mask), places(places), size(size) {
    check_rank(op, "q", q, 4);
    check_rank(op, "k", k, 4);
    check_type(op, "q", q.scalar_type());
    TORCH_CHECK_VALUE(size >= 1, op, ": size is ", size, ", expected 1 or more");
    TORCH_CHECK_VALUE(d() >= 1, op, ": q is of width 0, expected 1 or more");
    if (places) {
      check_shape(op, "places", *places, {batch(), places->dim() == 2 ? places->size(1) : -1});
      TORCH_CHECK_VALUE(places->scalar_type() == at::kInt, op, ": places is of type ", places->scalar_type(), ", expected Int");
      check_device(op, "places", *places, q);
      check(op, "k", k, {k.size(0), 1, heads(), d()});
      if (places->numel()) {
        const auto [least, most] = at::aminmax(*places);
        TORCH_CHECK_VALUE(least.item<int64_t>() >= 0 && most.item<int64_t>() < k.size(0), op, ": places are ",
                          least.item<int64_t>(), " to ", most.item<int64_t>(), ", expected 0 to ", k.size(0) - 1);
      }
    } else {
      check(op, "k", k, {batch(), k.size(1), heads(), d()});
    }
    check(op, "v", v, k.sizes());
    TORCH_CHECK_VALUE(sources() >= targets(), op, ": q has ", targets(), " positions, expected at most the ", sources(),
                      " of k");
    check(op, "u", u, {heads(), d()});
    check(op, "bias", bias, {heads()});
    if (sums) {
      check_rank(op, "sums", *sums, 4);
      check(op, "sums", *sums, {batch(), sums->size(1), heads(), d() + 1});
      TORCH_CHECK_VALUE(far() <= targets(), op, ": sums has ", far(), " positions, expected at most the ", targets(), " of q");
    }
    if (key_padding_mask) check_mask(op, "key_padding_mask", *key_padding_mask, {batch(), sources()}, q);
  }
  void check(const char* op, const char* name, const Tensor& x, at::IntArrayRef shape) const {
    check_shape(op, name, x, shape);
    check_like(op, name, x, q);
  }
  void make_contiguous() {
    for (Tensor* x : {&q, &k, &v}) *x = with_contiguous_rows(*x);
    if (sums) sums = with_contiguous_rows(*sums);
    u = u.contiguous();
    bias = bias.contiguous();
  }

  int64_t batch() const { return q.size(0); }
  int64_t targets() const { return q.size(1); }
  int64_t heads() const { return q.size(2); }
  int64_t d() const { return q.size(3); }
  int64_t sources() const { return places ? places->size(1) : k.size(1); }
  int64_t far() const { return sums ? sums->size(1) : 0; }

  // Calls `head` of the chosen kernels for every head, with the call that `describe` completes.
  template <class Describe> void run(bool forward, const Describe& describe) const {
    if (batch() == 0 || heads() == 0) return;
    AT_DISPATCH_FLOATING_TYPES(q.scalar_type(), "fwp::read_window", [&] {
      const WindowKernels<scalar_t>& kernels = chosen_window_kernels<scalar_t>();
      WindowCall<scalar_t> c{};
      c.batch = batch(), c.heads = heads(), c.targets = targets(), c.sources = sources(), c.far = far(), c.size = size, c.d = d();
      c.scale = 1 / std::sqrt(static_cast<scalar_t>(d()));
      point(c.q, q);
      point(c.k, k);
      point(c.v, v);
      point(c.sums, sums);
      point(c.key_padding_mask, key_padding_mask);
      point(c.places, places);
      point(c.u, u);
      point(c.bias, bias);
      describe(c);
      for_each_head<scalar_t>(c, kernels.scratch(c), forward ? kernels.forward : kernels.backward);
    });
  }
};

Tensor read_window(const Tensor& q, const Tensor& k, const Tensor& v, const OptionalTensor& sums, const Tensor& u,
                   const Tensor& bias, const OptionalTensor& key_padding_mask, const OptionalTensor& places, int64_t size) {
  WindowInputs in("fwp::read_window", q, k, v, sums, u, bias, key_padding_mask, places, size);
  const Tensor out = new_rows(q);
  in.make_contiguous();
  in.run(true, [&](auto& c) { point(c.out, out); });
  return out;
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> read_window_backward(
    const Tensor& given, const Tensor& q, const Tensor& k, const Tensor& v, const OptionalTensor& sums, const Tensor& u,
    const Tensor& bias, const OptionalTensor& key_padding_mask, int64_t size) {
  static constexpr char op[] = "fwp::read_window_backward";
  WindowInputs in(op, q, k, v, sums, u, bias, key_padding_mask, std::nullopt, size);
  in.check(op, "grad_out", given, q.sizes());
  const Tensor grad_q = new_rows(q), grad_k = new_rows(k), grad_v = new_rows(v);
  const Tensor grad_sums = sums ? new_rows(*sums) : at::empty({0}, q.options());
  const Tensor grad_u = at::empty({in.batch(), in.heads(), in.d()}, q.options());
  const Tensor grad_bias = at::empty({in.batch(), in.heads()}, q.options());
  const Tensor grad_out = with_contiguous_rows(given);
  in.make_contiguous();
  in.run(false, [&](auto& c) {
    point(c.grad_out, grad_out);
    point(c.grad_q, grad_q);
    point(c.grad_k, grad_k);
    point(c.grad_v, grad_v);
    if (sums) point(c.grad_sums, grad_sums);
    point(c.grad_u, grad_u);
    point(c.grad_bias, grad_bias);
  });
  return {grad_q, grad_k, grad_v, grad_sums, grad_u.sum(0), grad_bias.sum(0)};
}

}  // namespace

TORCH_LIBRARY_IMPL(fwp, CPU, m) {
  m.impl("read_window", &read_window);
  m.impl("read_window_backward", &read_window_backward);
}

}  // namespace fwp
