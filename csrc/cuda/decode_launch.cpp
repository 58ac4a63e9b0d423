// The decoding operators on CUDA: checks, tensors to plain pointers, stream, device guard, registration. What the tables
// name is checked by the kernels: reading it here would wait for the device.
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include <limits>
#include <string>
#include <tuple>

#include "../common/decode_inputs.h"
#include "kernels/decode_launch.h"
#include "tensors.h"

namespace fwp::gpu {
namespace {

bool rows_are_aligned(const Tensor& x) {
  return x.size(3) % 8 == 0 && reinterpret_cast<std::uintptr_t>(x.const_data_ptr()) % 16 == 0;
}

DecodeCall call_of(const Block& block, int64_t d_key) {
  DecodeCall c{};
  block.describe(c, d_key);
  c.type = type_of(block.op, block.keys.scalar_type());
  c.states = block.W ? static_cast<int>(block.W->size(0)) : 0;
  // Only decode writes, and into tensors that its schema says are written.
  c.keys = const_cast<void*>(block.keys.const_data_ptr());
  c.values = const_cast<void*>(block.values.const_data_ptr());
  c.aligned = rows_are_aligned(block.keys) && rows_are_aligned(block.values);
  if (block.ancestors) {
    c.ancestors = const_cast<int*>(block.ancestors->const_data_ptr<int>());
    c.ancestors_ld = block.ancestors->size(1);
  }
  c.state_rows = block.rows.const_data_ptr<int>();
  c.W = pointer(block.W);
  c.z = pointer(block.z);
  return c;
}

void run(const char* op, const char* (*kernel)(const DecodeCall&, void*), const DecodeCall& call) {
  if (call.rows == 0 || call.heads == 0 || call.d_value == 0) return;
  const char* error = kernel(call, c10::cuda::getCurrentCUDAStream().stream());
  TORCH_CHECK(error == nullptr, op, ": ", error);
}

Tensor decode(
    const Tensor& q, const OptionalTensor& k, const OptionalTensor& v, const OptionalTensor& beta,
    const OptionalTensor& padding, const Tensor& keys, const Tensor& values, const OptionalTensor& strengths,
    const OptionalTensor& ancestors, const Tensor& table, const OptionalTensor& W, const OptionalTensor& z,
    const OptionalTensor& projection, int64_t count, std::string rule, std::string feature_map, int64_t d_dot,
    double input_scale, bool normalize_features, bool normalize_output, double eps) {
  static constexpr char op[] = "fwp::decode";
  const c10::cuda::CUDAGuard guard(q.device());
  check_rank(op, "q", q, 4);
  const int64_t T = q.size(1), d_key = q.size(3);
  Block block{op, keys, values, strengths, ancestors, table, W, z, count, rule, feature_map, d_dot, normalize_output};
  check_served(op, keys.scalar_type(), rule, d_key);
  block.check(d_key, k ? T : 0);
  const Step step(block, q, k, v, beta, padding, projection);
  Tensor out = new_rows(q, values.size(3));
  DecodeCall call = call_of(block, d_key);
  call.tokens = static_cast<int>(T);
  call.projection = pointer(projection);
  call.input_scale = static_cast<float>(input_scale);
  call.normalize_features = normalize_features;
  call.eps = static_cast<float>(eps);
  call.q = rows(step.q);
  call.out = mutable_rows(out);
  if (k) {
    call.k = rows(*step.k);
    call.v = rows(*step.v);
    if (beta) call.beta = rows(*beta, beta->const_data_ptr<float>());
    if (padding) call.padding = rows(*padding, reinterpret_cast<const unsigned char*>(padding->const_data_ptr()));
  }
  if (T) run(op, start_decode, call);
  return out;
}

std::tuple<Tensor, Tensor> fold(
    const Tensor& keys, const Tensor& values, const OptionalTensor& strengths, const Tensor& ancestors,
    const Tensor& table, const OptionalTensor& W, const OptionalTensor& z, int64_t count, std::string rule,
    std::string feature_map, int64_t d_dot, bool normalize_output) {
  static constexpr char op[] = "fwp::fold";
  const c10::cuda::CUDAGuard guard(keys.device());
  check_rank(op, "keys", keys, 4);
  Block block{op, keys, values, strengths, ancestors, table, W, z, count, rule, feature_map, d_dot, normalize_output};
  check_served(op, keys.scalar_type(), rule, block.d_cached());
  block.check(block.d_cached(), 0);
  const int64_t R = block.reading(), H = block.heads();
  const auto floats = keys.options().dtype(at::kFloat);
  Tensor new_W = at::empty({R, H, d_dot, values.size(3)}, floats);
  Tensor new_z = normalize_output ? at::empty({R, H, d_dot}, floats) : at::empty({0}, floats);
  DecodeCall call = call_of(block, block.d_cached());
  call.new_W = new_W.mutable_data_ptr<float>();
  if (normalize_output) call.new_z = new_z.mutable_data_ptr<float>();
  run(op, start_fold, call);
  return {new_W, new_z};
}

// Why this device cannot decode with these sizes, or an empty text.
std::string cuda_decode_refusal(int64_t device, at::ScalarType type, std::string feature_map, int64_t d_key, int64_t d_dot) {
  static constexpr char op[] = "fwp::cuda_decode_refusal";
  DecodeCall call{};
  call.map = map_of(op, feature_map);
  const Width width = checked_width(op, call.map, d_key, d_dot);
  call.type = type_of(op, type);
  call.nu = static_cast<int>(width.nu);
  call.d_key = static_cast<int>(d_key);
  call.d_dot = static_cast<int>(d_dot);
  call.d_cached = static_cast<int>(width.d_cached);
  if (call.nu > most_offsets) return "the CUDA kernels decode with at most " + std::to_string(most_offsets) + " offsets of DPFP";
  return refusal(op, device, decode_bytes(call));
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(fwp, m) {
  m.def("cuda_decode_refusal(int device, ScalarType type, str feature_map, int d_key, int d_dot) -> str",
        &cuda_decode_refusal);
}
TORCH_LIBRARY_IMPL(fwp, CUDA, m) {
  m.impl("decode", &decode);
  m.impl("fold", &fold);
}

}  // namespace fwp::gpu
