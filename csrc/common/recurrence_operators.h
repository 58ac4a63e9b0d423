// The operators recur and recur_lstm and their backwards for any device. The functions here check the inputs and
// allocate the results, and a class Device computes them. fwp_fairseq/ops/recurrence.py explains what they compute. A
// Device has two functions:
//
//     run(op, kernel, k, describe)
//     run_lstm(op, kernel, k, describe)
//
// Each raises an error if the device does not support the type of k. It creates a call and Fields(op, k), lets
// describe(fields, call) fill in the call, and runs the kernel if fields.ready() is true.
#pragma once

#include <array>
#include <tuple>

#include "inputs.h"
#include "recurrence_call.h"

namespace fwp {

// The sizes of a call, which are those of k.
struct RecurrentSizes {
  int64_t batch, length, heads, d;

  RecurrentSizes(const char* op, const Tensor& k) {
    check_rank(op, "k", k, 4);
    batch = k.size(0), length = k.size(1), heads = k.size(2), d = k.size(3);
    TORCH_CHECK_VALUE(d >= 1, op, ": k is of width 0, expected 1 or more");
  }
  std::array<int64_t, 4> rows() const { return {batch, length, heads, d}; }
  std::array<int64_t, 4> matrix() const { return {batch, heads, d, d}; }
  std::array<int64_t, 3> vector() const { return {batch, heads, d}; }
  // The shapes of the Delta LSTM's net, whose heads have three gates each; `heads` counts every gate of every head.
  std::array<int64_t, 4> net_rows() const { return {batch, length, heads / 3, d}; }
  std::array<int64_t, 3> net_vector() const { return {batch, heads / 3, d}; }

  template <class C> void describe(C& c) const {
    set(c.batch, batch);
    set(c.heads, heads);
    set(c.length, length);
    set(c.d, d);
  }
};

template <class Device>
std::tuple<Tensor, Tensor, Tensor, Tensor> recur(const Tensor& z, const Tensor& k, const Tensor& v, const Tensor& beta,
                                                 const OptionalTensor& key_padding_mask, const OptionalTensor& R,
                                                 const OptionalTensor& y) {
  static constexpr char op[] = "fwp::recur";
  const RecurrentSizes n(op, k);
  Tensor out, last_R, last_y, written;
  Device::run(op, RecurrenceKernel::forward, k, [&](Fields& f, auto& c) {
    n.describe(c);
    f.rows("z", z, c.z, n.rows());
    f.rows("k", k, c.k, n.rows());
    f.rows("v", v, c.v, n.rows());
    f.gate("beta", beta, c.beta, {n.batch, n.length, n.heads});
    f.mask(key_padding_mask, c.key_padding_mask, {n.batch, n.length});
    f.whole("R", R, c.initial_R, n.matrix());
    f.whole("y", y, c.initial_y, n.vector());
    out = f.new_rows(c.out, k, n.d);
    last_R = f.new_whole(c.R, n.matrix());
    last_y = f.new_whole(c.y, n.vector());
    written = f.new_rows(c.written, k, n.d);
  });
  return {out, last_R, last_y, written};
}

template <class Device>
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> recur_backward(
    const Tensor& grad_out, const OptionalTensor& grad_R, const OptionalTensor& grad_y, const Tensor& found,
    const Tensor& last_R, const Tensor& written, const Tensor& k, const Tensor& v, const Tensor& beta,
    const OptionalTensor& key_padding_mask, const OptionalTensor& y) {
  static constexpr char op[] = "fwp::recur_backward";
  const RecurrentSizes n(op, k);
  Tensor grad_z, grad_k, grad_v, grad_beta, grad_initial_R, grad_initial_y;
  Device::run(op, RecurrenceKernel::backward, k, [&](Fields& f, auto& c) {
    n.describe(c);
    f.rows("grad_out", grad_out, c.grad_out, n.rows());
    f.whole("grad_R", grad_R, c.grad_R, n.matrix());
    f.whole("grad_y", grad_y, c.grad_y, n.vector());
    f.rows("found", found, c.found, n.rows());
    f.whole("last_R", last_R, c.last_R, n.matrix());
    f.rows("written", written, c.found_written, n.rows());
    f.whole("y", y, c.initial_y, n.vector());
    f.rows("k", k, c.k, n.rows());
    f.rows("v", v, c.v, n.rows());
    f.gate("beta", beta, c.beta, {n.batch, n.length, n.heads});
    f.mask(key_padding_mask, c.key_padding_mask, {n.batch, n.length});
    grad_z = f.new_rows(c.grad_z, k, n.d);
    grad_k = f.new_rows(c.grad_k, k, n.d);
    grad_v = f.new_rows(c.grad_v, k, n.d);
    grad_beta = f.new_gate(c.grad_beta, beta);
    grad_initial_R = f.new_whole(c.grad_initial_R, n.matrix());
    grad_initial_y = f.new_whole(c.grad_initial_y, n.vector());
  });
  return {grad_z, grad_k, grad_v, grad_beta, grad_initial_R, grad_initial_y};
}

// The inputs that recur_lstm and its backward share; k, v and beta contain the heads of the three gates one after
// another.
struct LstmInputs {
  const Tensor &k, &v, &beta;
  const OptionalTensor &key_padding_mask, &h, &c;

  template <class C> void describe(const RecurrentSizes& n, Fields& f, C& call) const {
    TORCH_CHECK_VALUE(n.heads % 3 == 0, f.op, ": k has ", n.heads, " heads, expected those of three gates");
    n.describe(call);
    set(call.heads, n.heads / 3);
    f.rows("k", k, call.k, n.rows());
    f.rows("v", v, call.v, n.rows());
    f.gate("beta", beta, call.beta, {n.batch, n.length, n.heads});
    f.mask(key_padding_mask, call.key_padding_mask, {n.batch, n.length});
    f.whole("h", h, call.initial_y, n.net_vector());
    f.whole("c", c, call.initial_c, n.net_vector());
  }
};

template <class Device>
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> recur_lstm(
    const Tensor& z, const Tensor& k, const Tensor& v, const Tensor& beta, const OptionalTensor& key_padding_mask,
    const OptionalTensor& R, const OptionalTensor& h, const OptionalTensor& c) {
  static constexpr char op[] = "fwp::recur_lstm";
  const RecurrentSizes n(op, k);
  const LstmInputs in{k, v, beta, key_padding_mask, h, c};
  Tensor out, last_R, last_h, last_c, cells, gates, written;
  Device::run_lstm(op, RecurrenceKernel::forward, k, [&](Fields& f, auto& call) {
    in.describe(n, f, call);
    f.rows("z", z, call.z, n.rows());
    f.whole("R", R, call.initial_R, n.matrix());
    const Tensor net = k.narrow(2, 0, n.heads / 3);
    out = f.new_rows(call.out, net, n.d);
    last_R = f.new_whole(call.R, n.matrix());
    last_h = f.new_whole(call.y, n.net_vector());
    last_c = f.new_whole(call.c, n.net_vector());
    cells = f.new_rows(call.cells, net, n.d);
    gates = f.new_rows(call.gates, k, n.d);
    written = f.new_rows(call.written, k, n.d);
  });
  return {out, last_R, last_h, last_c, cells, gates, written};
}

template <class Device>
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> recur_lstm_backward(
    const Tensor& grad_out, const OptionalTensor& grad_R, const OptionalTensor& grad_h, const OptionalTensor& grad_c,
    const Tensor& found, const Tensor& cells, const Tensor& gates, const Tensor& last_R, const Tensor& written,
    const Tensor& k, const Tensor& v, const Tensor& beta, const OptionalTensor& key_padding_mask,
    const OptionalTensor& h, const OptionalTensor& c) {
  static constexpr char op[] = "fwp::recur_lstm_backward";
  const RecurrentSizes n(op, k);
  const LstmInputs in{k, v, beta, key_padding_mask, h, c};
  Tensor grad_z, grad_k, grad_v, grad_beta, grad_initial_R, grad_initial_h, grad_initial_c;
  Device::run_lstm(op, RecurrenceKernel::backward, k, [&](Fields& f, auto& call) {
    in.describe(n, f, call);
    f.rows("grad_out", grad_out, call.grad_out, n.net_rows());
    f.whole("grad_R", grad_R, call.grad_R, n.matrix());
    f.whole("grad_h", grad_h, call.grad_y, n.net_vector());
    f.whole("grad_c", grad_c, call.grad_c, n.net_vector());
    f.rows("found", found, call.found, n.net_rows());
    f.rows("cells", cells, call.found_cells, n.net_rows());
    f.rows("gates", gates, call.found_gates, n.rows());
    f.whole("last_R", last_R, call.last_R, n.matrix());
    f.rows("written", written, call.found_written, n.rows());
    grad_z = f.new_rows(call.grad_z, k, n.d);
    grad_k = f.new_rows(call.grad_k, k, n.d);
    grad_v = f.new_rows(call.grad_v, k, n.d);
    grad_beta = f.new_gate(call.grad_beta, beta);
    grad_initial_R = f.new_whole(call.grad_initial_R, n.matrix());
    grad_initial_h = f.new_whole(call.grad_initial_y, n.net_vector());
    grad_initial_c = f.new_whole(call.grad_initial_c, n.net_vector());
  });
  return {grad_z, grad_k, grad_v, grad_beta, grad_initial_R, grad_initial_h, grad_initial_c};
}

}  // namespace fwp
