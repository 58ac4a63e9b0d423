// read_window and its backward on the CPU: checks the inputs, allocates the results, and runs one task for each batch
// row and head.
#include <torch/library.h>

#include <cmath>
#include <tuple>

#include "../common/inputs.h"
#include "capability.h"
#include "glue.h"

namespace fwp {
namespace {

// The inputs that read_window and its backward share.
struct WindowInputs {
  const Tensor &q, &k, &v;
  const OptionalTensor& sums;
  const Tensor &u, &bias;
  const OptionalTensor& key_padding_mask;
  int64_t size;

  // k and v are storage where places are given.
  template <class C> void describe(const OptionalTensor& places, Fields& f, C& c) const {
    check_rank(f.op, "q", q, 4);
    check_rank(f.op, "k", k, 4);
    const int64_t B = q.size(0), T = q.size(1), H = q.size(2), d = q.size(3), stored = k.size(0);
    TORCH_CHECK_VALUE(d >= 1, f.op, ": q is of width 0, expected 1 or more");
    TORCH_CHECK_VALUE(size >= 1, f.op, ": size is ", size, ", expected 1 or more");
    if (places) check_places(f.op, *places);
    const int64_t S = places ? places->size(1) : k.size(1);
    TORCH_CHECK_VALUE(S >= T, f.op, ": q has ", T, " positions, expected at most the ", S, " of k");
    if (sums) {
      check_rank(f.op, "sums", *sums, 4);
      TORCH_CHECK_VALUE(sums->size(1) <= T, f.op, ": sums has ", sums->size(1), " positions, expected at most the ", T,
                        " of q");
    }
    c.batch = B, c.heads = H, c.targets = T, c.sources = S, c.far = sums ? sums->size(1) : 0, c.size = size, c.d = d;
    c.scale = 1 / std::sqrt(static_cast<decltype(c.scale)>(d));
    f.rows("q", q, c.q, {B, T, H, d});
    f.rows("k", k, c.k, {places ? stored : B, places ? 1 : S, H, d});
    f.rows("v", v, c.v, {places ? stored : B, places ? 1 : S, H, d});
    f.whole("u", u, c.u, {H, d});
    f.whole("bias", bias, c.bias, {H});
    if (sums) f.rows("sums", *sums, c.sums, {B, c.far, H, d + 1});
    f.mask(key_padding_mask, c.key_padding_mask, {B, S});
    if (places) point(c.places, *places);
  }
  void check_places(const char* op, const Tensor& places) const {
    check_rank(op, "places", places, 2);
    check_shape(op, "places", places, {q.size(0), places.size(1)});
    TORCH_CHECK_VALUE(places.scalar_type() == at::kInt, op, ": places is of type ", places.scalar_type(),
                      ", expected Int");
    check_device(op, "places", places, q);
    if (!places.numel()) return;
    const auto [least, most] = at::aminmax(places);
    TORCH_CHECK_VALUE(least.item<int64_t>() >= 0 && most.item<int64_t>() < k.size(0), op, ": places are ",
                      least.item<int64_t>(), " to ", most.item<int64_t>(), ", expected 0 to ", k.size(0) - 1);
  }
};

Tensor read_window(const Tensor& q, const Tensor& k, const Tensor& v, const OptionalTensor& sums, const Tensor& u,
                   const Tensor& bias, const OptionalTensor& key_padding_mask, const OptionalTensor& places,
                   int64_t size) {
  static constexpr char op[] = "fwp::read_window";
  const WindowInputs in{q, k, v, sums, u, bias, key_padding_mask, size};
  Tensor out;
  const auto describe = [&](Fields& f, auto& c) {
    in.describe(places, f, c);
    out = f.new_rows(c.out, q, q.size(3));
  };
  with_call<WindowCall>(op, "q", q, describe, [](const auto& c, auto number) {
    for_each_head(c, chosen_kernels<decltype(number)>().window.forward);
  });
  return out;
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> read_window_backward(
    const Tensor& grad_out, const Tensor& q, const Tensor& k, const Tensor& v, const OptionalTensor& sums,
    const Tensor& u, const Tensor& bias, const OptionalTensor& key_padding_mask, int64_t size) {
  static constexpr char op[] = "fwp::read_window_backward";
  const WindowInputs in{q, k, v, sums, u, bias, key_padding_mask, size};
  Tensor grad_q, grad_k, grad_v, grad_sums, grad_u, grad_bias;
  const auto describe = [&](Fields& f, auto& c) {
    in.describe(std::nullopt, f, c);
    f.rows("grad_out", grad_out, c.grad_out, q.sizes());
    grad_q = f.new_rows(c.grad_q, q, c.d);
    grad_k = f.new_rows(c.grad_k, k, c.d);
    grad_v = f.new_rows(c.grad_v, v, c.d);
    grad_sums = sums ? f.new_rows(c.grad_sums, *sums, c.d + 1) : at::empty({0}, q.options());
    grad_u = f.new_whole(c.grad_u, {c.batch, c.heads, c.d});  // of each batch row
    grad_bias = f.new_whole(c.grad_bias, {c.batch, c.heads});
  };
  with_call<WindowCall>(op, "q", q, describe, [](const auto& c, auto number) {
    for_each_head(c, chosen_kernels<decltype(number)>().window.backward);
  });
  return {grad_q, grad_k, grad_v, grad_sums, grad_u.sum(0), grad_bias.sum(0)};
}

}  // namespace

TORCH_LIBRARY_IMPL(fwp, CPU, m) {
  m.impl("read_window", &read_window);
  m.impl("read_window_backward", &read_window_backward);
}

}  // namespace fwp
