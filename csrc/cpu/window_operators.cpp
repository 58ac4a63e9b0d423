// read_window and its backward on the CPU: inputs checked, results made, and one task for each batch row and head.
#include <ATen/Dispatch.h>
#include <torch/library.h>

#include <tuple>

#include "capability.h"
#include "glue.h"
#include "read_inputs.h"

namespace fwp {
namespace {

struct WindowInputs : ReadInputs {
  Tensor u, bias;
  OptionalTensor sums, places;
  int64_t size;

  WindowInputs(const char* op, const Tensor& q, const Tensor& k, const Tensor& v, const OptionalTensor& sums,
               const Tensor& u, const Tensor& bias, const OptionalTensor& key_padding_mask,
               const OptionalTensor& places, int64_t size)
      : ReadInputs(op, q, k, v, key_padding_mask), u(u), bias(bias), sums(sums), places(places), size(size) {
    TORCH_CHECK_VALUE(size >= 1, op, ": size is ", size, ", expected 1 or more");
    if (places) check_places();
    else check_written({batch(), k.size(1), heads(), d()});
    TORCH_CHECK_VALUE(sources() >= targets(), op, ": q has ", targets(), " positions, expected at most the ", sources(),
                      " of k");
    check("u", u, {heads(), d()});
    check("bias", bias, {heads()});
    if (sums) {
      check_rank(op, "sums", *sums, 4);
      check("sums", *sums, {batch(), sums->size(1), heads(), d() + 1});
      TORCH_CHECK_VALUE(far() <= targets(), op, ": sums has ", far(), " positions, expected at most the ", targets(), " of q");
    }
    check_pads(sources());
  }
  void check_places() const {
    check_rank(op, "places", *places, 2);
    check_shape(op, "places", *places, {batch(), places->size(1)});
    TORCH_CHECK_VALUE(places->scalar_type() == at::kInt, op, ": places is of type ", places->scalar_type(), ", expected Int");
    check_device(op, "places", *places, q);
    check_written({k.size(0), 1, heads(), d()});
    if (!places->numel()) return;
    const auto [least, most] = at::aminmax(*places);
    TORCH_CHECK_VALUE(least.item<int64_t>() >= 0 && most.item<int64_t>() < k.size(0), op, ": places are ",
                      least.item<int64_t>(), " to ", most.item<int64_t>(), ", expected 0 to ", k.size(0) - 1);
  }
  void make_contiguous() {
    ReadInputs::make_contiguous();
    if (sums) sums = with_contiguous_rows(*sums);
    u = u.contiguous();
    bias = bias.contiguous();
  }

  int64_t sources() const { return places ? places->size(1) : k.size(1); }
  int64_t far() const { return sums ? sums->size(1) : 0; }

  // Runs the forward or the backward kernel for every head, with the call that `complete` completes.
  template <class Complete> void run(bool forward, const Complete& complete) const {
    if (batch() == 0 || heads() == 0) return;
    AT_DISPATCH_FLOATING_TYPES(q.scalar_type(), "fwp::read_window", [&] {
      const WindowKernels<scalar_t>& kernels = chosen_window_kernels<scalar_t>();
      WindowCall<scalar_t> c{};
      describe(c);
      c.sources = sources(), c.far = far(), c.size = size;
      point(c.sums, sums);
      point(c.places, places);
      point(c.u, u);
      point(c.bias, bias);
      complete(c);
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
  in.check("grad_out", given, q.sizes());
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
