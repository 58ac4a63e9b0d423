// recur, recur_net and their backwards for any device: inputs are checked and results are made here, a Device computes them.
// A Device has
//
//     Guard                             made of the inputs' device, lives as long as the operator runs
//     check(op, name, type)             fails for what the device does not serve; `name` is the tensor of this type
//     layout(weight)                    the net's weight (H, d, 3 d + 1) as the kernels read it, contiguous
//     run(op, kernel, x, describe)      runs the kernel with the device's call, whose fields describe(call) fills; of x are
//                                       the type and the device of all tensors
#pragma once

#include <tuple>

#include "recurrence_call.h"
#include "recurrence_inputs.h"

namespace fwp {

template <class Device, class Kernel, class Describe>
void run_recurrence(const char* op, Kernel kernel, const RecurrentInputs& in, const Describe& describe) {
  if (in.batch() == 0 || in.heads() == 0) return;  // then d may be of any size, also one that no kernel has room for
  Device::run(op, kernel, in.x, describe);
}

template <class Device>
std::tuple<Tensor, Tensor, Tensor, Tensor> recur(const Tensor& given_z, const Tensor& k, const Tensor& v,
                                                 const Tensor& beta, const OptionalTensor& key_padding_mask,
                                                 const OptionalTensor& given_R, const OptionalTensor& y) {
  static constexpr char op[] = "fwp::recur";
  check_rank(op, "k", k, 4);
  const typename Device::Guard guard(k.device());
  Device::check(op, "k", k.scalar_type());
  RecurrenceInputs in(op, k, v, beta, key_padding_mask, y);
  in.check_rows(op, "z", given_z);
  const RecurrentResults found(op, "R", in, given_R);
  const Tensor z = with_contiguous_rows(given_z);
  in.make_contiguous();
  run_recurrence<Device>(op, RecurrenceKernel::forward, in, [&](auto& c) {
    in.describe(c);
    point(c.z, z);
    found.describe(c);
  });
  return {found.out, found.last, found.y, found.written};
}

template <class Device>
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> recur_backward(
    const Tensor& given_out, const OptionalTensor& given_R, const OptionalTensor& given_y, const Tensor& found,
    const Tensor& last_R, const Tensor& written, const Tensor& k, const Tensor& v, const Tensor& beta,
    const OptionalTensor& key_padding_mask, const OptionalTensor& y) {
  static constexpr char op[] = "fwp::recur_backward";
  check_rank(op, "k", k, 4);
  const typename Device::Guard guard(k.device());
  Device::check(op, "k", k.scalar_type());
  RecurrenceInputs in(op, k, v, beta, key_padding_mask, y);
  const RecurrentGradients back(op, in, given_out, "grad_R", given_R, given_y, found, "last_R", last_R, written);
  const Tensor grad_z = new_rows(k), grad_k = new_rows(k), grad_v = new_rows(k), grad_beta = new_rows(beta);
  in.make_contiguous();
  run_recurrence<Device>(op, RecurrenceKernel::backward, in, [&](auto& c) {
    in.describe(c);
    back.describe(c);
    point(c.grad_z, grad_z);
    point(c.grad_k, grad_k);
    point(c.grad_v, grad_v);
    point(c.grad_beta, grad_beta);
  });
  return {grad_z, grad_k, grad_v, grad_beta, back.initial, back.initial_y};
}

template <class Device>
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> recur_net(const Tensor& parts, const Tensor& weight,
                                                             const OptionalTensor& key_padding_mask,
                                                             const OptionalTensor& given_W, const OptionalTensor& y,
                                                             double largest, double eps) {
  static constexpr char op[] = "fwp::recur_net";
  check_rank(op, "parts", parts, 4);
  const typename Device::Guard guard(parts.device());
  Device::check(op, "parts", parts.scalar_type());
  NetInputs in(op, "parts", parts, weight, key_padding_mask, y, largest, eps);
  const RecurrentResults found(op, "W", in, given_W);
  const Tensor fed = new_rows(parts);
  in.make_contiguous();
  in.weight = Device::layout(weight);
  run_recurrence<Device>(op, RecurrenceKernel::net_forward, in, [&](auto& c) {
    in.describe(c);
    point(c.parts, in.x);
    point(c.fed_parts, fed);
    found.describe(c);
  });
  return {found.out, found.last, found.y, found.written, fed};
}

template <class Device>
std::tuple<Tensor, Tensor, Tensor> recur_net_backward(const Tensor& given_out, const OptionalTensor& given_W,
                                                      const OptionalTensor& given_y, const Tensor& found,
                                                      const Tensor& last_W, const Tensor& written, const Tensor& fed,
                                                      const Tensor& weight, const OptionalTensor& key_padding_mask,
                                                      const OptionalTensor& y, double largest, double eps) {
  static constexpr char op[] = "fwp::recur_net_backward";
  check_rank(op, "fed", fed, 4);
  const typename Device::Guard guard(fed.device());
  Device::check(op, "fed", fed.scalar_type());
  NetInputs in(op, "fed", fed, weight, key_padding_mask, y, largest, eps);
  const RecurrentGradients back(op, in, given_out, "grad_W", given_W, given_y, found, "last_W", last_W, written);
  const Tensor grad_parts = new_rows(fed);
  in.make_contiguous();
  in.weight = Device::layout(weight);
  run_recurrence<Device>(op, RecurrenceKernel::net_backward, in, [&](auto& c) {
    in.describe(c);
    point(c.found_parts, in.x);
    back.describe(c);
    point(c.grad_parts, grad_parts);
  });
  return {grad_parts, back.initial, back.initial_y};
}

}  // namespace fwp
