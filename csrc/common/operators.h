// The operator fast_weights and its backward for any device. The functions here check the inputs and allocate the
// results, and a class Device computes them: CpuRules in cpu/operators.cpp, CudaRules in cuda/operators.cpp. A Device has
// two functions:
//
//     forward(problem, q, v, describe)
//     backward(problem, q, v, describe)
//
// Each raises an error if the device does not support the problem or the types of q and v. It creates a call and
// Fields(op, q), lets describe(fields, call) fill in the call, and runs the kernel if fields.ready() is true. k has the
// type of q, and the output that of v.
#pragma once

#include <array>
#include <tuple>
#include <utility>

#include "inputs.h"

namespace fwp {

// The arguments of the operator's schema that are not tensors.
struct Options {
  std::string rule, feature_map;
  int64_t d_dot;
  bool causal, both_ways, normalize_features, normalize_output;
  double eps;
};

// The sizes and the parsed options of one call. The constructor checks them.
struct Problem {
  const char* op;
  Options options;
  Rule rule;
  Map map;
  Width width;
  int64_t batch, heads, targets, sources, d_key, d_value;

  Problem(const char* op, const Tensor& q, const Tensor& k, const Tensor& v, Options given)
      : op(op), options(std::move(given)) {
    check_rank(op, "q", q, 4);
    check_rank(op, "k", k, 4);
    check_rank(op, "v", v, 4);
    batch = k.size(0), heads = k.size(2), targets = q.size(1), sources = k.size(1), d_key = k.size(3);
    d_value = v.size(3);
    TORCH_CHECK_VALUE(d_value > 0, op, ": v is of width 0, expected 1 or more");
    TORCH_CHECK_VALUE(!options.causal || targets == sources, op,
                      ": causal needs as many queries as keys, got T = ", targets, " and S = ", sources);
    TORCH_CHECK_VALUE(!options.both_ways || (options.causal && heads % 2 == 0), op,
                      ": both_ways is true, expected it with causal and an even number of heads only");
    rule = rule_of(op, options.rule);
    map = map_of(op, options.feature_map);
    width = checked_width(op, map, d_key, options.d_dot);
  }

  std::array<int64_t, 4> state_shape() const { return {batch, heads, options.d_dot, d_value}; }

  template <class C> void describe(C& c) const {
    c.rule = rule;
    c.map = map;
    set(c.nu, width.nu);
    c.causal = options.causal;
    c.normalize_features = options.normalize_features;
    c.normalize_output = options.normalize_output;
    set(c.eps, options.eps);
    set(c.batch, batch);
    set(c.heads, heads);
    set(c.targets, targets);
    set(c.sources, sources);
    set(c.d_key, d_key);
    set(c.d_value, d_value);
    set(c.d_dot, options.d_dot);
  }
};

// The tensors that forward and backward both receive.
struct Inputs {
  const Tensor &q, &k, &v;
  const OptionalTensor &beta, &alpha, &key_padding_mask, &W, &z, &projection;

  template <class C> void describe(const Problem& p, Fields& f, C& c) const {
    p.describe(c);
    f.rows("q", q, c.q, {p.batch, p.targets, p.heads, p.d_key});
    f.rows("k", k, c.k, {p.batch, p.sources, p.heads, p.d_key});
    f.rows("v", v, c.v, {p.batch, p.sources, p.heads, p.d_value}, v.scalar_type());
    gate(f, "beta", beta, c.beta, takes_beta(p.rule), p.rule, {p.batch, p.sources, p.heads});
    gate(f, "alpha", alpha, c.alpha, takes_alpha(p.rule), p.rule, {p.batch, p.sources, p.heads});
    f.mask(key_padding_mask, c.key_padding_mask, {p.batch, p.sources});
    if constexpr (takes_projection<C>) {
      set(c.m, p.width.m);
      set(c.input_scale, input_scale(p.d_key));
      fwp::projection(f, projection, c.projection, p.map, {p.width.m, p.d_key}, p.width.m > 0);
    }
    states(f, "initial_W", "initial_z", W, z, c.initial_W, c.initial_z, p.state_shape(), p.options.normalize_output);
  }
};

template <class Device>
std::tuple<Tensor, Tensor, Tensor> fast_weights(const Tensor& q, const Tensor& k, const Tensor& v,
                                                const OptionalTensor& beta, const OptionalTensor& alpha,
                                                const OptionalTensor& key_padding_mask, const OptionalTensor& W,
                                                const OptionalTensor& z, const OptionalTensor& projection,
                                                std::string rule, std::string feature_map, int64_t d_dot, bool causal,
                                                bool both_ways, bool normalize_features, bool normalize_output,
                                                double eps, bool return_state) {
  static constexpr char op[] = "fwp::fast_weights";
  const Problem p(op, q, k, v,
                  {rule, feature_map, d_dot, causal, both_ways, normalize_features, normalize_output, eps});
  const Inputs in{q, k, v, beta, alpha, key_padding_mask, W, z, projection};
  const std::array<int64_t, 4> shape = p.state_shape();
  const std::array<int64_t, 1> none{0};
  const at::IntArrayRef W_shape = shape, z_shape = W_shape.slice(0, 3);
  Tensor out, new_W, new_z;
  Device::forward(p, q, v, [&](Fields& f, auto& c) {
    in.describe(p, f, c);
    out = f.new_rows(c.out, q, p.d_value, v.scalar_type());
    new_W = f.new_whole(c.W, return_state ? W_shape : at::IntArrayRef(none));
    new_z = f.new_whole(c.z, return_state && normalize_output ? z_shape : at::IntArrayRef(none));
  });
  return {out, new_W, new_z};
}

template <class Device>
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> fast_weights_backward(
    const Tensor& grad_out, const OptionalTensor& grad_W, const OptionalTensor& grad_z, const Tensor& q,
    const Tensor& k, const Tensor& v, const OptionalTensor& beta, const OptionalTensor& alpha,
    const OptionalTensor& key_padding_mask, const OptionalTensor& W, const OptionalTensor& z,
    const OptionalTensor& projection, std::string rule, std::string feature_map, int64_t d_dot, bool causal,
    bool both_ways, bool normalize_features, bool normalize_output, double eps) {
  static constexpr char op[] = "fwp::fast_weights_backward";
  const Problem p(op, q, k, v,
                  {rule, feature_map, d_dot, causal, both_ways, normalize_features, normalize_output, eps});
  const Inputs in{q, k, v, beta, alpha, key_padding_mask, W, z, projection};
  Tensor grad_q, grad_k, grad_v, grad_beta, grad_alpha, grad_initial_W, grad_initial_z;
  Device::backward(p, q, v, [&](Fields& f, auto& c) {
    in.describe(p, f, c);
    f.rows("grad_out", grad_out, c.grad_out, {p.batch, p.targets, p.heads, p.d_value}, v.scalar_type());
    states(f, "grad_W", "grad_z", grad_W, grad_z, c.grad_W, c.grad_z, p.state_shape(), normalize_output);
    grad_q = f.new_rows(c.grad_q, q, p.d_key);
    grad_k = f.new_rows(c.grad_k, k, p.d_key);
    grad_v = f.new_rows(c.grad_v, v, p.d_value);
    const Tensor none = at::empty({0}, q.options()), no_state = at::empty({0}, q.options().dtype(state_type(q)));
    grad_beta = beta ? f.new_gate(c.grad_beta, *beta) : none;
    grad_alpha = alpha ? f.new_gate(c.grad_alpha, *alpha) : none.clone();
    grad_initial_W = W ? f.new_whole(c.grad_initial_W, W->sizes()) : no_state;
    grad_initial_z = z ? f.new_whole(c.grad_initial_z, z->sizes()) : no_state.clone();
  });
  return {grad_q, grad_k, grad_v, grad_beta, grad_alpha, grad_initial_W, grad_initial_z};
}

}  // namespace fwp
