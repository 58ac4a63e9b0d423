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

struct Options {
  std::string rule, feature_map;
  int64_t d_dot;
  double input_scale;
  bool causal, normalize_features, normalize_output;
  double eps;
};

// The inputs of forward and backward, checked, with a contiguous last dimension; `call` points into them.
struct Inputs {
  Tensor q, k, v;
  OptionalTensor beta, mask, W, z, projection;
  Call call{};

  Inputs(const char* op, const Tensor& given_q, const Tensor& given_k, const Tensor& given_v, const OptionalTensor& given_beta,
         const OptionalTensor& given_mask, const OptionalTensor& given_W, const OptionalTensor& given_z,
         const OptionalTensor& given_projection, const Options& o) {
    check_rank(op, "q", given_q, 4);
    check_rank(op, "k", given_k, 4);
    check_rank(op, "v", given_v, 4);
    const int64_t B = given_k.size(0), S = given_k.size(1), H = given_k.size(2), d_key = given_k.size(3);
    const int64_t T = given_q.size(1), d_value = given_v.size(3);
    check_shape(op, "q", given_q, {B, T, H, d_key});
    check_shape(op, "v", given_v, {B, S, H, d_value});
    check_like(op, "k", given_k, given_q);
    check_like(op, "v", given_v, given_q);
    TORCH_CHECK_VALUE(!o.causal || T == S, op, ": causal needs as many queries as keys, got T = ", T, " and S = ", S);
    call.rule = rule_of(op, o.rule);
    call.map = map_of(op, o.feature_map);
    call.type = type_of(op, given_q.scalar_type());
    TORCH_CHECK_VALUE((call.rule != Rule::sum) == given_beta.has_value(), op, ": beta is ",
                      given_beta ? "given" : "missing", " for the rule ", o.rule);
    check_width(op, call.map, o.feature_map, o.d_dot, d_key);
    TORCH_CHECK_VALUE((call.map == Map::favor) == given_projection.has_value(), op, ": projection is ",
                      given_projection ? "given" : "missing", " for the feature map ", o.feature_map);
    q = with_contiguous_rows(given_q);
    k = with_contiguous_rows(given_k);
    v = with_contiguous_rows(given_v);
    if (given_beta) {
      check_float(op, "beta", *given_beta, {B, S, H}, q);
      beta = given_beta;
      call.beta = rows(*beta, beta->const_data_ptr<float>());
    }
    if (given_mask) {
      check_mask(op, "key_padding_mask", *given_mask, {B, S}, q);
      mask = given_mask;
      call.padding = rows<const unsigned char>(*mask, reinterpret_cast<const unsigned char*>(mask->const_data_ptr()));
    }
    if (given_projection) {
      check_float(op, "projection", *given_projection, {o.d_dot / 2, d_key}, q);
      projection = given_projection->contiguous();
    }
    TORCH_CHECK_VALUE((given_W && o.normalize_output) == given_z.has_value(), op, ": initial_z is ",
                      given_z ? "given" : "missing",
                      ", expected it exactly where initial_W is given and the output is normalised");
    if (given_W) {
      check_float(op, "initial_W", *given_W, {B, H, o.d_dot, d_value}, q);
      W = whole_state(*given_W);
    }
    if (given_z) {
      check_float(op, "initial_z", *given_z, {B, H, o.d_dot}, q);
      z = whole_state(*given_z);
    }
    call.nu = offsets_of(call.map, o.d_dot, d_key);
    call.projection = pointer(projection);
    call.input_scale = static_cast<float>(o.input_scale);
    call.causal = o.causal;
    call.normalize_features = o.normalize_features;
    call.normalize_output = o.normalize_output;
    call.eps = static_cast<float>(o.eps);
    call.batch = static_cast<int>(B);
    call.heads = static_cast<int>(H);
    call.targets = static_cast<int>(T);
    call.sources = static_cast<int>(S);
    call.d_key = static_cast<int>(d_key);
    call.d_value = static_cast<int>(d_value);
    call.d_dot = static_cast<int>(o.d_dot);
    call.q = rows(q);
    call.k = rows(k);
    call.v = rows(v);
    call.initial_W = pointer(W);
    call.initial_z = pointer(z);
  }
};

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
  Inputs in(op, q, k, v, beta, mask, W, z, projection,
            {rule, feature_map, d_dot, input_scale, causal, normalize_features, normalize_output, eps});
  const int64_t B = k.size(0), H = k.size(2);
  const auto floats = q.options().dtype(at::kFloat);
  Tensor out = new_rows(q, v.size(3));
  in.call.out = mutable_rows(out);
  Tensor new_W, new_z;
  const auto make_state = [&](bool wanted) {
    new_W = empty_if(wanted, {B, H, d_dot, v.size(3)}, floats);
    new_z = empty_if(wanted && normalize_output, {B, H, d_dot}, floats);
    in.call.W = mutable_pointer(new_W);
    in.call.z = mutable_pointer(new_z);
  };
  make_state(return_state);
  fit(in.call, false, shared_memory(op, q.get_device()));
  if (is_walked(in.call) && !in.call.resident && !return_state) make_state(true);
  run(op, forward, in.call);
  if (return_state) return {out, new_W, new_z};
  return {out, at::empty({0}, floats), at::empty({0}, floats)};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> fast_weights_backward(
    const Tensor& grad_out, const OptionalTensor& grad_W, const OptionalTensor& grad_z, const Tensor& q,
    const Tensor& k, const Tensor& v, const OptionalTensor& beta, const OptionalTensor& mask, const OptionalTensor& W,
    const OptionalTensor& z, const OptionalTensor& projection, std::string rule, std::string feature_map,
    int64_t d_dot, double input_scale, bool causal, bool normalize_features, bool normalize_output, double eps) {
  static constexpr char op[] = "fwp::fast_weights_backward";
  const c10::cuda::CUDAGuard guard(q.device());
  Inputs in(op, q, k, v, beta, mask, W, z, projection,
            {rule, feature_map, d_dot, input_scale, causal, normalize_features, normalize_output, eps});
  const int64_t B = k.size(0), H = k.size(2);
  check_shape(op, "grad_out", grad_out, {B, q.size(1), H, v.size(3)});
  check_like(op, "grad_out", grad_out, q);
  TORCH_CHECK_VALUE((grad_W && normalize_output) == grad_z.has_value(), op, ": grad_z is ",
                    grad_z ? "given" : "missing",
                    ", expected it exactly where grad_W is given and the output is normalised");
  const Tensor dout = with_contiguous_rows(grad_out);
  OptionalTensor dW, dz;
  if (grad_W) {
    check_float(op, "grad_W", *grad_W, {B, H, d_dot, v.size(3)}, q);
    dW = whole_state(*grad_W);
  }
  if (grad_z) {
    check_float(op, "grad_z", *grad_z, {B, H, d_dot}, q);
    dz = whole_state(*grad_z);
  }
  const auto floats = q.options().dtype(at::kFloat);
  Tensor grad_q = new_rows(q), grad_k = new_rows(k), grad_v = new_rows(v);
  Tensor grad_beta = beta ? new_rows(*beta) : at::empty({0}, q.options());
  in.call.grad_out = rows(dout);
  in.call.grad_W = pointer(dW);
  in.call.grad_z = pointer(dz);
  in.call.grad_q = mutable_rows(grad_q);
  in.call.grad_k = mutable_rows(grad_k);
  in.call.grad_v = mutable_rows(grad_v);
  if (beta) in.call.grad_beta = rows(grad_beta, grad_beta.mutable_data_ptr<float>());
  fit(in.call, true, shared_memory(op, q.get_device()));
  const bool walked = is_walked(in.call);
  if (walked) in.call.checkpoints = checkpoints_of(in.call);
  const int64_t states = states_of(in.call);
  const Tensor between_W = empty_if(walked, {states, B, H, d_dot, v.size(3)}, floats);
  const Tensor between_z = empty_if(walked && normalize_output, {states, B, H, d_dot}, floats);
  const Tensor grad_initial_W = empty_if(walked || W, {B, H, d_dot, v.size(3)}, floats);
  const Tensor grad_initial_z = empty_if((walked && normalize_output) || z, {B, H, d_dot}, floats);
  in.call.W = mutable_pointer(between_W);
  in.call.z = mutable_pointer(between_z);
  in.call.grad_initial_W = mutable_pointer(grad_initial_W);
  in.call.grad_initial_z = mutable_pointer(grad_initial_z);
  run(op, backward, in.call);
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
  check_width(op, call.map, feature_map, d_dot, d_key);
  call.type = type_of(op, type);
  call.d_key = static_cast<int>(d_key);
  call.d_value = static_cast<int>(d_value);
  call.d_dot = static_cast<int>(d_dot);
  call.nu = offsets_of(call.map, d_dot, d_key);
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
