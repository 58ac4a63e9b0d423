// read_slots and its backward on the CPU: inputs checked, results made, and one task for each batch row and head.
#include <ATen/Dispatch.h>
#include <torch/library.h>

#include <algorithm>
#include <tuple>

#include "capability.h"
#include "glue.h"
#include "read_inputs.h"

namespace fwp {
namespace {

struct SlotsInputs : ReadInputs {
  Tensor weight, sharpness;

  SlotsInputs(const char* op, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& weight, const Tensor& sharpness,
              const OptionalTensor& key_padding_mask)
      : ReadInputs(op, q, k, v, key_padding_mask), weight(weight), sharpness(sharpness) {
    check_written({batch(), sources(), heads(), d()});
    check_rank(op, "weight", weight, 3);
    check("weight", weight, {heads(), slots(), d()});
    TORCH_CHECK_VALUE(slots() >= 1, op, ": weight is of 0 slots, expected 1 or more");
    check("sharpness", sharpness, {heads()});
    check_pads(sources());
  }
  void make_contiguous() {
    ReadInputs::make_contiguous();
    weight = weight.contiguous();
    sharpness = sharpness.contiguous();
  }

  int64_t sources() const { return k.size(1); }
  int64_t slots() const { return weight.size(1); }
  int64_t used() const { return std::min(slots(), sources()); }

  // Runs the forward or the backward kernel for every head, with the call that `complete` completes.
  template <class Complete> void run(bool forward, const Complete& complete) const {
    if (batch() == 0 || heads() == 0) return;
    AT_DISPATCH_FLOATING_TYPES(q.scalar_type(), "fwp::read_slots", [&] {
      const SlotsKernels<scalar_t>& kernels = chosen_slots_kernels<scalar_t>();
      SlotsCall<scalar_t> c{};
      describe(c);
      c.sources = sources(), c.slots = slots(), c.used = used();
      point(c.weight, weight);
      point(c.sharpness, sharpness);
      complete(c);
      for_each_head<scalar_t>(c, kernels.scratch(c), forward ? kernels.forward : kernels.backward);
    });
  }
};

Tensor read_slots(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& weight, const Tensor& sharpness,
                  const OptionalTensor& key_padding_mask) {
  SlotsInputs in("fwp::read_slots", q, k, v, weight, sharpness, key_padding_mask);
  const Tensor out = new_rows(q);
  in.make_contiguous();
  in.run(true, [&](auto& c) { point(c.out, out); });
  return out;
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> read_slots_backward(
    const Tensor& given, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& weight, const Tensor& sharpness,
    const OptionalTensor& key_padding_mask) {
  SlotsInputs in("fwp::read_slots_backward", q, k, v, weight, sharpness, key_padding_mask);
  in.check("grad_out", given, q.sizes());
  const Tensor grad_q = new_rows(q), grad_k = new_rows(k), grad_v = new_rows(v);
  const Tensor of_rows = at::empty({in.batch(), in.heads(), in.used(), in.d()}, q.options());
  const Tensor grad_sharpness = at::empty({in.batch(), in.heads()}, q.options());
  const Tensor grad_out = with_contiguous_rows(given);
  in.make_contiguous();
  in.run(false, [&](auto& c) {
    point(c.grad_out, grad_out);
    point(c.grad_q, grad_q);
    point(c.grad_k, grad_k);
    point(c.grad_v, grad_v);
    point(c.grad_weight, of_rows);
    point(c.grad_sharpness, grad_sharpness);
  });
  const Tensor grad_weight = at::zeros_like(in.weight);
  grad_weight.narrow(1, 0, in.used()).copy_(of_rows.sum(0));
  return {grad_q, grad_k, grad_v, grad_weight, grad_sharpness.sum(0)};
}

}  // namespace

TORCH_LIBRARY_IMPL(fwp, CPU, m) {
  m.impl("read_slots", &read_slots);
  m.impl("read_slots_backward", &read_slots_backward);
}

}  // namespace fwp
