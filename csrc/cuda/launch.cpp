// Tensors to plain pointers, stream, device guard, and the registration of the CUDA kernels.
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include <algorithm>
#include <string>
#include <tuple>

#include "kernels/launch.h"
#include "tensors.h"

namespace fwp::gpu {
namespace {

Call call_of(const Inputs& in) {
  Call call{};
  in.describe(call);
  call.type = type_of(in.op, in.q.scalar_type());
  call.projection = pointer(in.projection);
  if (in.beta) call.beta = rows(*in.beta, in.beta->const_data_ptr<float>());
  if (in.mask)
    call.padding = rows(*in.mask, reinterpret_cast<const unsigned char*>(in.mask->const_data_ptr()));
  call.q = rows(in.q);
  call.k = rows(in.k);
  call.v = rows(in.v);
  call.initial_W = pointer(in.W);
  call.initial_z = pointer(in.z);
  return call;
}

Tensor empty_if(bool wanted, at::IntArrayRef shape, const at::TensorOptions& options) {
  return wanted ? at::empty(shape, options) : at::empty({0}, options);
}
float* mutable_pointer(const Tensor& x) { return x.numel() ? x.mutable_data_ptr<float>() : nullptr; }

template <class Kernel> void run(const char* op, Kernel kernel, const Call& call) {
  if (call.batch == 0 || call.heads == 0) return;
  const char* error = kernel(call, c10::cuda::getCurrentCUDAStream().stream());
  TORCH_CHECK(error == nullptr, op, ": ", error);
}

std::tuple<Tensor, Tensor, Tensor> fast_weights(
    const Tensor& q, const Tensor& k, const Tensor& v, const OptionalTensor& beta, const OptionalTensor& mask,
    const OptionalTensor& W, const OptionalTensor& z, const OptionalTensor& projection, std::string rule,
    std::string feature_map, int64_t d_dot, double input_scale, bool causal, bool normalize_features,
    bool normalize_output, double eps, bool return_state) {
  static constexpr char op[] = "fwp::fast_weights";
  const c10::cuda::CUDAGuard guard(q.device());
  check_served(op, q.scalar_type(), rule, k.size(-1));
  const Inputs in(op, q, k, v, beta, mask, W, z, projection,
                  {rule, feature_map, d_dot, input_scale, causal, normalize_features, normalize_output, eps});
  Call call = call_of(in);
  Tensor out = new_rows(q, v.size(3));
  call.out = mutable_rows(out);
  auto [new_W, new_z] = in.new_states(return_state);
  call.W = mutable_pointer(new_W);
  call.z = mutable_pointer(new_z);
  fit(call, false, shared_memory(op, q.get_device()));
  std::pair<Tensor, Tensor> between;
  if (is_walked(call) && !call.resident && !return_state) {
    between = in.new_states(true);
    call.W = mutable_pointer(between.first);
    call.z = mutable_pointer(between.second);
  }
  run(op, forward, call);
  return {out, new_W, new_z};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> fast_weights_backward(
    const Tensor& grad_out, const OptionalTensor& grad_W, const OptionalTensor& grad_z, const Tensor& q,
    const Tensor& k, const Tensor& v, const OptionalTensor& beta, const OptionalTensor& mask, const OptionalTensor& W,
    const OptionalTensor& z, const OptionalTensor& projection, std::string rule, std::string feature_map,
    int64_t d_dot, double input_scale, bool causal, bool normalize_features, bool normalize_output, double eps) {
  static constexpr char op[] = "fwp::fast_weights_backward";
  const c10::cuda::CUDAGuard guard(q.device());
  check_served(op, q.scalar_type(), rule, k.size(-1));
  const Inputs in(op, q, k, v, beta, mask, W, z, projection,
                  {rule, feature_map, d_dot, input_scale, causal, normalize_features, normalize_output, eps});
  in.check_gradients(grad_out, grad_W, grad_z);
  Call call = call_of(in);
  const int64_t B = in.batch(), H = in.heads();
  const Tensor dout = with_contiguous_rows(grad_out);
  const OptionalTensor dW = whole(grad_W), dz = whole(grad_z);
  const auto floats = q.options().dtype(at::kFloat);
  Tensor grad_q = new_rows(q), grad_k = new_rows(k), grad_v = new_rows(v);
  Tensor grad_beta = beta ? new_rows(*beta) : at::empty({0}, q.options());
  call.grad_out = rows(dout);
  call.grad_W = pointer(dW);
  call.grad_z = pointer(dz);
  call.grad_q = mutable_rows(grad_q);
  call.grad_k = mutable_rows(grad_k);
  call.grad_v = mutable_rows(grad_v);
  if (beta) call.grad_beta = rows(grad_beta, grad_beta.mutable_data_ptr<float>());
  fit(call, true, shared_memory(op, q.get_device()));
  const bool walked = is_walked(call);
  if (walked) call.checkpoints = checkpoints_of(call);
  const int64_t states = states_of(call);
  const Tensor between_W = empty_if(walked, {states, B, H, d_dot, v.size(3)}, floats);
  const Tensor between_z = empty_if(walked && normalize_output, {states, B, H, d_dot}, floats);
  const Tensor grad_initial_W = empty_if(walked || W, {B, H, d_dot, v.size(3)}, floats);
  const Tensor grad_initial_z = empty_if((walked && normalize_output) || z, {B, H, d_dot}, floats);
  call.W = mutable_pointer(between_W);
  call.z = mutable_pointer(between_z);
  call.grad_initial_W = mutable_pointer(grad_initial_W);
  call.grad_initial_z = mutable_pointer(grad_initial_z);
  run(op, backward, call);
  return {grad_q, grad_k, grad_v, grad_beta, W ? grad_initial_W : at::empty({0}, floats),
          z ? grad_initial_z : at::empty({0}, floats)};
}

// Why this device cannot serve calls of these sizes, or an empty text.
std::string cuda_refusal(int64_t device, at::ScalarType type, std::string feature_map, int64_t d_key, int64_t d_value,
                         int64_t d_dot, int64_t longest, bool state, bool differentiated) {
  static constexpr char op[] = "fwp::cuda_refusal";
  Call call{};
  const float present = 0;
  call.map = map_of(op, feature_map);
  check_served(op, type, rule_names[0], d_key);
  const Width width = checked_width(op, call.map, d_key, d_dot);
  call.type = type_of(op, type);
  call.d_key = static_cast<int>(d_key);
  call.d_value = static_cast<int>(d_value);
  call.d_dot = static_cast<int>(d_dot);
  call.nu = static_cast<int>(width.nu);
  call.m = static_cast<int>(width.m);
  call.targets = call.sources = static_cast<int>(longest);
  call.initial_W = state ? &present : nullptr;
  const int limit = shared_memory(op, device);
  const auto needs = [&](bool backward) {
    fit(call, backward, limit);
    return most_bytes(call, backward);
  };
  return refusal(op, device, differentiated ? std::max(needs(false), needs(true)) : needs(false));
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(fwp, m) {
  m.def(
      "cuda_refusal(int device, ScalarType type, str feature_map, int d_key, int d_value, int d_dot, int longest, "
      "bool state, bool differentiated) -> str",
      &cuda_refusal);
}
TORCH_LIBRARY_IMPL(fwp, CUDA, m) {
  m.impl("fast_weights", &fast_weights);
  m.impl("fast_weights_backward", &fast_weights_backward);
}

}  // namespace fwp::gpu
