// recur_lstm and its backward for any device: inputs are checked and results are made here, a Device computes them. It has
// Guard and check as a Device of recurrence_operators.h, and run(op, kernel, x, describe) for an LstmKernel.
#pragma once

#include <tuple>

#include "lstm_call.h"
#include "lstm_inputs.h"
#include "recurrence_operators.h"

namespace fwp {

template <class Device>
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> recur_lstm(
    const Tensor& given_z, const Tensor& k, const Tensor& v, const Tensor& beta, const OptionalTensor& key_padding_mask,
    const OptionalTensor& R, const OptionalTensor& h, const OptionalTensor& c) {
  static constexpr char op[] = "fwp::recur_lstm";
  check_rank(op, "k", k, 4);
  const typename Device::Guard guard(k.device());
  Device::check(op, "k", k.scalar_type());
  LstmInputs in(op, k, v, beta, key_padding_mask, h, c);
  in.check_rows(op, "z", given_z);
  const LstmResults found(op, in, R);
  const Tensor z = with_contiguous_rows(given_z);
  in.make_contiguous();
  run_recurrence<Device>(op, LstmKernel::forward, in, [&](auto& call) {
    in.describe(call);
    point(call.z, z);
    found.describe(call);
  });
  return {found.out, found.last, found.h, found.c, found.cells, found.gates, found.written};
}

template <class Device>
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> recur_lstm_backward(
    const Tensor& grad_out, const OptionalTensor& grad_R, const OptionalTensor& grad_h, const OptionalTensor& grad_c,
    const Tensor& found, const Tensor& cells, const Tensor& gates, const Tensor& last_R, const Tensor& written,
    const Tensor& k, const Tensor& v, const Tensor& beta, const OptionalTensor& key_padding_mask, const OptionalTensor& h,
    const OptionalTensor& c) {
  static constexpr char op[] = "fwp::recur_lstm_backward";
  check_rank(op, "k", k, 4);
  const typename Device::Guard guard(k.device());
  Device::check(op, "k", k.scalar_type());
  LstmInputs in(op, k, v, beta, key_padding_mask, h, c);
  const LstmGradients back(op, in, grad_out, grad_R, grad_h, grad_c, found, cells, gates, last_R, written);
  in.make_contiguous();
  run_recurrence<Device>(op, LstmKernel::backward, in, [&](auto& call) {
    in.describe(call);
    back.describe(call);
  });
  return {back.z, back.k, back.v, back.beta, back.initial, back.initial_h, back.initial_c};
}

}  // namespace fwp
