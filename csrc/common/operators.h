// fast_weights and its backward for any device: inputs are checked and results are made here, a Device computes them.
// A Device has
//
//     Guard                         made of q's device, lives as long as the operator runs
//     check(op, name, type, d_key)  fails for what the device does not serve; `name` is the tensor of this type
//     forward(inputs, results)      fills the results
//     backward(inputs, gradients)   fills those that go out
#pragma once

#include <tuple>

#include "inputs.h"

namespace fwp {

struct Results {
  Tensor out, W, z;  // W and z are empty where they are not wanted

  template <class C> void describe(C& c) const {
    point(c.out, out);
    point(c.W, W);
    point(c.z, z);
  }
};

struct Gradients {
  Tensor out;  // these come in
  OptionalTensor W, z;
  Tensor q, k, v;  // these go out
  OptionalTensor beta, alpha, initial_W, initial_z;

  template <class C> void describe(C& c) const {
    point(c.grad_out, out);
    point(c.grad_W, W);
    point(c.grad_z, z);
    point(c.grad_q, q);
    point(c.grad_k, k);
    point(c.grad_v, v);
    point(c.grad_beta, beta);
    point(c.grad_alpha, alpha);
    point(c.grad_initial_W, initial_W);
    point(c.grad_initial_z, initial_z);
  }
};

template <class Device>
std::tuple<Tensor, Tensor, Tensor> fast_weights(
    const Tensor& q, const Tensor& k, const Tensor& v, const OptionalTensor& beta, const OptionalTensor& alpha,
    const OptionalTensor& key_padding_mask, const OptionalTensor& W, const OptionalTensor& z,
    const OptionalTensor& projection, std::string rule, std::string feature_map, int64_t d_dot, double input_scale,
    bool causal, bool both_ways, bool normalize_features, bool normalize_output, double eps, bool return_state) {
  static constexpr char op[] = "fwp::fast_weights";
  check_rank(op, "q", q, 4);
  check_rank(op, "k", k, 4);
  const typename Device::Guard guard(q.device());
  Device::check(op, "q", q.scalar_type(), k.size(3));
  const Inputs in(op, q, k, v, beta, alpha, key_padding_mask, W, z, projection,
                  {rule, feature_map, d_dot, input_scale, causal, both_ways, normalize_features, normalize_output, eps});
  const auto [new_W, new_z] = in.new_states(return_state);
  const Results results{new_rows(q, in.d_value()), new_W, new_z};
  // An empty tensor may be of any size, and so give a kernel any number of tasks.
  if (results.out.numel() || new_W.numel()) Device::forward(in, results);
  return {results.out, results.W, results.z};
}

template <class Device>
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> fast_weights_backward(
    const Tensor& grad_out, const OptionalTensor& grad_W, const OptionalTensor& grad_z, const Tensor& q,
    const Tensor& k, const Tensor& v, const OptionalTensor& beta, const OptionalTensor& alpha,
    const OptionalTensor& key_padding_mask, const OptionalTensor& W, const OptionalTensor& z,
    const OptionalTensor& projection, std::string rule, std::string feature_map, int64_t d_dot,
    double input_scale, bool causal, bool both_ways, bool normalize_features, bool normalize_output, double eps) {
  static constexpr char op[] = "fwp::fast_weights_backward";
  check_rank(op, "q", q, 4);
  check_rank(op, "k", k, 4);
  const typename Device::Guard guard(q.device());
  Device::check(op, "q", q.scalar_type(), k.size(3));
  const Inputs in(op, q, k, v, beta, alpha, key_padding_mask, W, z, projection,
                  {rule, feature_map, d_dot, input_scale, causal, both_ways, normalize_features, normalize_output, eps});
  check_shape(op, "grad_out", grad_out, {in.batch(), in.targets(), in.heads(), in.d_value()});
  check_like(op, "grad_out", grad_out, q);
  check_states(op, "grad_W", "grad_z", grad_W, grad_z, in.state_shape(), normalize_output, q);
  const auto states = q.options().dtype(state_type(q));
  const auto like = [&](const OptionalTensor& x) { return x ? OptionalTensor(at::empty(x->sizes(), states)) : x; };
  const auto rows_like = [](const OptionalTensor& x) { return x ? OptionalTensor(new_rows(*x)) : x; };
  const Gradients found{with_contiguous_rows(grad_out), whole(grad_W), whole(grad_z), new_rows(q), new_rows(k), new_rows(v),
                        rows_like(beta), rows_like(alpha), like(W), like(z)};
  if (found.q.numel() || found.v.numel() || (W && W->numel())) Device::backward(in, found);
  const auto given = [](const OptionalTensor& x, const at::TensorOptions& o) { return x ? *x : at::empty({0}, o); };
  return {found.q, found.k, found.v, given(found.beta, q.options()), given(found.alpha, q.options()),
          given(found.initial_W, states), given(found.initial_z, states)};
}

}  // namespace fwp
