// Tensors to plain pointers, one task per batch row and head, and the registration of the CPU kernels.
#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <torch/library.h>

#include <string>
#include <tuple>

#include "../common/inputs.h"
#include "capability.h"
#include "tensors.h"

namespace fwp {
namespace {

// q's type is one that is computed in.
Inputs checked(const char* op, const Tensor& q, const Tensor& k, const Tensor& v, const OptionalTensor& beta,
               const OptionalTensor& mask, const OptionalTensor& W, const OptionalTensor& z,
               const OptionalTensor& projection, Options options) {
  if (q.scalar_type() != at::kBFloat16) check_type(op, q);
  return {op, q, k, v, beta, mask, W, z, projection, std::move(options)};
}

template <class T, class In = T> Call<T, In> call_of(const Inputs& in) {
  Call<T, In> c;
  in.describe(c);
  c.projection = pointer<T>(in.projection);
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
  const Inputs in = checked(op, q, k, v, beta, mask, W, z, projection,
                            {rule, feature_map, d_dot, input_scale, causal, normalize_features, normalize_output, eps});
  Tensor out = new_rows(q, v.size(3));
  auto [new_W, new_z] = in.new_states(return_state);
  if (q.scalar_type() == at::kBFloat16) {
    auto c = call_of<float, Bf16>(in);
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
    auto c = call_of<scalar_t>(in);
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
  const Inputs in = checked(op, q, k, v, beta, mask, W, z, projection,
                            {rule, feature_map, d_dot, input_scale, causal, normalize_features, normalize_output, eps});
  in.check_gradients(grad_out, grad_W, grad_z);
  if (q.scalar_type() == at::kBFloat16) {  // float's gradients, rounded
    auto [dq, dk, dv, dbeta, dW, dz] = fast_weights_backward(
        grad_out.to(at::kFloat), grad_W, grad_z, q.to(at::kFloat), k.to(at::kFloat), v.to(at::kFloat), beta,
        mask, W, z, projection, rule, feature_map, d_dot, input_scale, causal, normalize_features, normalize_output, eps);
    const auto narrow = [](const Tensor& x) { return x.to(at::kBFloat16); };
    return {narrow(dq), narrow(dk), narrow(dv), dbeta, dW, dz};
  }
  const Tensor dout = with_contiguous_rows(grad_out);
  const OptionalTensor dW = whole(grad_W), dz = whole(grad_z);
  const Tensor none = at::empty({0}, q.options());
  Tensor grad_q = new_rows(q), grad_k = new_rows(k), grad_v = new_rows(v);
  Tensor grad_beta = beta ? new_rows(*beta) : none;
  Tensor grad_initial_W = W ? at::empty(W->sizes(), q.options()) : at::empty({0}, q.options());
  Tensor grad_initial_z = z ? at::empty(z->sizes(), q.options()) : at::empty({0}, q.options());
  AT_DISPATCH_FLOATING_TYPES(q.scalar_type(), op, [&] {
    auto c = call_of<scalar_t>(in);
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
void choose_cpu_capability(std::string name) { choose_capability(name); }

}  // namespace

TORCH_LIBRARY_IMPL(fwp, CPU, m) {
  m.impl("fast_weights", &fast_weights);
  m.impl("fast_weights_backward", &fast_weights_backward);
}
TORCH_LIBRARY_IMPL(fwp, CompositeExplicitAutograd, m) {
  m.impl("cpu_capability", &cpu_capability);
  m.impl("choose_cpu_capability", &choose_cpu_capability);
}

}  // namespace fwp
