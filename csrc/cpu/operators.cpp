// Tensors to plain pointers, one task per batch row and head, and the registration of the CPU kernels.
#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <torch/library.h>

#include <string>
#include <tuple>

#include "../checks.h"
#include "capability.h"
#include "tensors.h"

namespace fwp {
namespace {

struct Options {
  std::string rule, feature_map;
  int64_t d_dot;
  double input_scale;
  bool causal, normalize_features, normalize_output;
  double eps;
};

// The inputs of forward and backward, checked, with a contiguous last dimension.
struct Inputs {
  Tensor q, k, v;
  OptionalTensor beta, mask, W, z, projection;
};

OptionalTensor contiguous(const OptionalTensor& x) { return x ? OptionalTensor(x->contiguous()) : x; }

Rule rule_of(const char* op, const std::string& name) {
  if (name == "sum") return Rule::sum;
  if (name == "delta") return Rule::delta;
  if (name == "gated") return Rule::gated;
  TORCH_CHECK_VALUE(false, op, ": rule is ", name, ", expected sum, delta or gated");
}

Inputs checked(const char* op, const Tensor& q, const Tensor& k, const Tensor& v, const OptionalTensor& beta,
               const OptionalTensor& mask, const OptionalTensor& W, const OptionalTensor& z,
               const OptionalTensor& projection, const Options& o) {
  if (q.scalar_type() != at::kBFloat16) check_type(op, q);
  check_rank(op, "q", q, 4);
  check_rank(op, "k", k, 4);
  check_rank(op, "v", v, 4);
  const int64_t B = k.size(0), S = k.size(1), H = k.size(2), d_key = k.size(3), d_value = v.size(3);
  check_shape(op, "q", q, {B, q.size(1), H, d_key});
  check_shape(op, "v", v, {B, S, H, d_value});
  check_like(op, "k", k, q);
  check_like(op, "v", v, q);
  TORCH_CHECK_VALUE(!o.causal || q.size(1) == S, op, ": causal needs as many queries as keys, got T = ", q.size(1),
                    " and S = ", S);
  const Rule rule = rule_of(op, o.rule);
  TORCH_CHECK_VALUE((rule != Rule::sum) == beta.has_value(), op, ": beta is ", beta ? "given" : "missing",
                    " for the rule ", o.rule);
  if (beta) {
    check_shape(op, "beta", *beta, {B, S, H});
    check_state(op, "beta", *beta, q);
  }
  if (mask) check_mask(op, "key_padding_mask", *mask, {B, S}, q);
  const Map map = map_of(op, o.feature_map);
  const bool fits = map == Map::dpfp    ? d_key > 0 && o.d_dot > 0 && o.d_dot % (2 * d_key) == 0 && o.d_dot / (2 * d_key) < 2 * d_key
                    : map == Map::favor ? o.d_dot > 0 && o.d_dot % 2 == 0
                                        : o.d_dot == d_key;
  TORCH_CHECK_VALUE(fits, op, ": d_dot = ", o.d_dot, " is impossible for the feature map ", o.feature_map,
                    " with d_key = ", d_key);
  TORCH_CHECK_VALUE((map == Map::favor) == projection.has_value(), op, ": projection is ",
                    projection ? "given" : "missing", " for the feature map ", o.feature_map);
  if (projection) {
    check_shape(op, "projection", *projection, {o.d_dot / 2, d_key});
    check_state(op, "projection", *projection, q);
  }
  if (W) {
    check_shape(op, "initial_W", *W, {B, H, o.d_dot, d_value});
    check_state(op, "initial_W", *W, q);
  }
  TORCH_CHECK_VALUE((W && o.normalize_output) == z.has_value(), op, ": initial_z is ", z ? "given" : "missing",
                    ", expected it exactly where initial_W is given and the output is normalised");
  if (z) {
    check_shape(op, "initial_z", *z, {B, H, o.d_dot});
    check_state(op, "initial_z", *z, q);
  }
  return {with_contiguous_rows(q), with_contiguous_rows(k), with_contiguous_rows(v), beta, mask,
          contiguous(W), contiguous(z), contiguous(projection)};
}

template <class T, class In = T> Call<T, In> call_of(const char* op, const Inputs& in, const Options& o) {
  Call<T, In> c;
  c.rule = rule_of(op, o.rule);
  c.map = map_of(op, o.feature_map);
  c.projection = pointer<T>(in.projection);
  c.input_scale = static_cast<T>(o.input_scale);
  c.causal = o.causal;
  c.normalize_features = o.normalize_features;
  c.normalize_output = o.normalize_output;
  c.eps = static_cast<T>(o.eps);
  c.batch = in.k.size(0);
  c.heads = in.k.size(2);
  c.targets = in.q.size(1);
  c.sources = in.k.size(1);
  c.d_key = in.k.size(3);
  c.d_value = in.v.size(3);
  c.d_dot = o.d_dot;
  c.nu = c.map == Map::dpfp ? o.d_dot / (2 * c.d_key) : 0;
  c.q = rows<In>(in.q);
  c.k = rows<In>(in.k);
  c.v = rows<In>(in.v);
  if (in.beta) c.beta = rows<T>(*in.beta);
  if (in.mask) c.padding = rows<bool>(*in.mask);
  c.initial_W = pointer<T>(in.W);
  c.initial_z = pointer<T>(in.z);
  return c;
}

template <class T>
void run(const Call<T>& c, std::size_t scratch_size, void (*head)(const Call<T>&, std::ptrdiff_t, std::ptrdiff_t, T*)) {
  at::parallel_for(0, c.batch * c.heads, 1, [&](int64_t first, int64_t last) {
    T* own = scratch<T>(scratch_size);
    for (int64_t i = first; i < last; ++i) head(c, i / c.heads, i % c.heads, own);
  });
}

// Whether the bfloat16 kernels serve the call, which they have done then.
bool run_bf16(const Call<float, Bf16>& c) {
  const KernelsBf16* kernels = chosen_bf16_kernels();
  if (!kernels || !kernels->serves(c)) return false;
  const std::size_t scratch_size = kernels->forward_scratch(c);
  at::parallel_for(0, c.batch * c.heads, 1, [&](int64_t first, int64_t last) {
    kernels->forward(c, first, last, scratch<float>(scratch_size));
  });
  return true;
}

std::tuple<Tensor, Tensor, Tensor> fast_weights(
    const Tensor& q, const Tensor& k, const Tensor& v, const OptionalTensor& beta, const OptionalTensor& mask,
    const OptionalTensor& W, const OptionalTensor& z, const OptionalTensor& projection, std::string rule,
    std::string feature_map, int64_t d_dot, double input_scale, bool causal, bool normalize_features,
    bool normalize_output, double eps, bool return_state) {
  static constexpr char op[] = "fwp::fast_weights";
  const Options o{rule, feature_map, d_dot, input_scale, causal, normalize_features, normalize_output, eps};
  const Inputs in = checked(op, q, k, v, beta, mask, W, z, projection, o);
  const int64_t B = k.size(0), H = k.size(2);
  Tensor out = new_rows(q, v.size(3));
  const auto options = q.options().dtype(state_type(q));
  Tensor new_W = return_state ? at::empty({B, H, d_dot, v.size(3)}, options) : at::empty({0}, options);
  Tensor new_z = return_state && normalize_output ? at::empty({B, H, d_dot}, options) : at::empty({0}, options);
  if (q.scalar_type() == at::kBFloat16) {
    auto c = call_of<float, Bf16>(op, in, o);
    c.out = mutable_rows<Bf16>(out);
    if (return_state) c.W = new_W.mutable_data_ptr<float>();
    if (return_state && normalize_output) c.z = new_z.mutable_data_ptr<float>();
    if (run_bf16(c)) return {out, new_W, new_z};
    auto [y, last_W, last_z] = fast_weights(
        q.to(at::kFloat), k.to(at::kFloat), v.to(at::kFloat), beta, mask, W, z, projection, rule, feature_map,
        d_dot, input_scale, causal, normalize_features, normalize_output, eps, return_state);
    return {out.copy_(y), last_W, last_z};
  }
  AT_DISPATCH_FLOATING_TYPES(q.scalar_type(), op, [&] {
    auto c = call_of<scalar_t>(op, in, o);
    c.out = mutable_rows<scalar_t>(out);
    if (return_state) c.W = new_W.mutable_data_ptr<scalar_t>();
    if (return_state && normalize_output) c.z = new_z.mutable_data_ptr<scalar_t>();
    const auto& kernels = chosen_kernels<scalar_t>();
    run(c, kernels.forward_scratch(c), kernels.forward);
  });
  return {out, new_W, new_z};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> fast_weights_backward(
    const Tensor& grad_out, const OptionalTensor& grad_W, const OptionalTensor& grad_z, const Tensor& q,
    const Tensor& k, const Tensor& v, const OptionalTensor& beta, const OptionalTensor& mask, const OptionalTensor& W,
    const OptionalTensor& z, const OptionalTensor& projection, std::string rule, std::string feature_map,
    int64_t d_dot, double input_scale, bool causal, bool normalize_features, bool normalize_output, double eps) {
  static constexpr char op[] = "fwp::fast_weights_backward";
  const Options o{rule, feature_map, d_dot, input_scale, causal, normalize_features, normalize_output, eps};
  const Inputs in = checked(op, q, k, v, beta, mask, W, z, projection, o);
  check_shape(op, "grad_out", grad_out, {q.size(0), q.size(1), q.size(2), v.size(3)});
  check_like(op, "grad_out", grad_out, q);
  if (grad_W) {
    check_shape(op, "grad_W", *grad_W, {k.size(0), k.size(2), d_dot, v.size(3)});
    check_state(op, "grad_W", *grad_W, q);
  }
  TORCH_CHECK_VALUE((grad_W && normalize_output) == grad_z.has_value(), op, ": grad_z is ",
                    grad_z ? "given" : "missing",
                    ", expected it exactly where grad_W is given and the output is normalised");
  if (grad_z) {
    check_shape(op, "grad_z", *grad_z, {k.size(0), k.size(2), d_dot});
    check_state(op, "grad_z", *grad_z, q);
  }
  if (q.scalar_type() == at::kBFloat16) {  // float's gradients, rounded
    auto [dq, dk, dv, dbeta, dW, dz] = fast_weights_backward(
        grad_out.to(at::kFloat), grad_W, grad_z, q.to(at::kFloat), k.to(at::kFloat), v.to(at::kFloat), beta,
        mask, W, z, projection, rule, feature_map, d_dot, input_scale, causal, normalize_features, normalize_output, eps);
    const auto narrow = [](const Tensor& x) { return x.to(at::kBFloat16); };
    return {narrow(dq), narrow(dk), narrow(dv), dbeta, dW, dz};
  }
  const Tensor dout = with_contiguous_rows(grad_out);
  const OptionalTensor dW = contiguous(grad_W), dz = contiguous(grad_z);
  const Tensor none = at::empty({0}, q.options());
  Tensor grad_q = new_rows(q), grad_k = new_rows(k), grad_v = new_rows(v);
  Tensor grad_beta = beta ? new_rows(*beta) : none;
  Tensor grad_initial_W = W ? at::empty(W->sizes(), q.options()) : at::empty({0}, q.options());
  Tensor grad_initial_z = z ? at::empty(z->sizes(), q.options()) : at::empty({0}, q.options());
  AT_DISPATCH_FLOATING_TYPES(q.scalar_type(), op, [&] {
    auto c = call_of<scalar_t>(op, in, o);
    c.grad_out = rows<scalar_t>(dout);
    c.grad_W = pointer<scalar_t>(dW);
    c.grad_z = pointer<scalar_t>(dz);
    c.grad_q = mutable_rows<scalar_t>(grad_q);
    c.grad_k = mutable_rows<scalar_t>(grad_k);
    c.grad_v = mutable_rows<scalar_t>(grad_v);
    if (beta) c.grad_beta = mutable_rows<scalar_t>(grad_beta);
    if (W) c.grad_initial_W = grad_initial_W.mutable_data_ptr<scalar_t>();
    if (z) c.grad_initial_z = grad_initial_z.mutable_data_ptr<scalar_t>();
    const auto& kernels = chosen_kernels<scalar_t>();
    run(c, kernels.backward_scratch(c), kernels.backward);
  });
  return {grad_q, grad_k, grad_v, grad_beta, grad_initial_W, grad_initial_z};
}

std::string cpu_capability() { return capability_name(); }

}  // namespace

TORCH_LIBRARY_IMPL(fwp, CPU, m) {
  m.impl("fast_weights", &fast_weights);
  m.impl("fast_weights_backward", &fast_weights_backward);
}
TORCH_LIBRARY_IMPL(fwp, CompositeExplicitAutograd, m) { m.impl("cpu_capability", &cpu_capability); }

}  // namespace fwp
