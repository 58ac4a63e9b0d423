// From tensors to what the kernels see, for the glue of every operator.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "../checks.h"
#include "../rows.h"
#include "kernels/call.h"

namespace fwp::gpu {

constexpr int oldest_capability = 80;

inline Rule rule_of(const char* op, const std::string& name) {
  if (name == "sum") return Rule::sum;
  if (name == "delta") return Rule::delta;
  TORCH_CHECK_VALUE(false, op, ": rule is ", name, ", expected sum or delta on CUDA");
}
inline Map map_of(const char* op, const std::string& name) {
  if (name == "identity") return Map::identity;
  if (name == "elu") return Map::elu;
  if (name == "dpfp") return Map::dpfp;
  if (name == "favor") return Map::favor;
  TORCH_CHECK_VALUE(false, op, ": feature_map is ", name, ", expected identity, elu, dpfp or favor");
}
inline Type type_of(const char* op, at::ScalarType type) {
  if (type == at::kHalf) return Type::float16;
  if (type == at::kBFloat16) return Type::bfloat16;
  if (type == at::kFloat) return Type::float32;
  TORCH_CHECK_VALUE(false, op, ": q is of type ", type, ", expected Half, BFloat16 or Float on CUDA");
}
inline void check_width(const char* op, Map map, const std::string& name, int64_t d_dot, int64_t d_key) {
  TORCH_CHECK_VALUE(d_key > 0, op, ": d_key = ", d_key, ", expected at least 1");
  const bool fits = map == Map::dpfp    ? d_dot > 0 && d_dot % (2 * d_key) == 0 && d_dot / (2 * d_key) < 2 * d_key
                    : map == Map::favor ? d_dot > 0 && d_dot % 2 == 0
                                        : d_dot == d_key;
  TORCH_CHECK_VALUE(fits, op, ": d_dot = ", d_dot, " is impossible for the feature map ", name, " with d_key = ", d_key);
}
// DPFP's nu; 0 for the other maps.
inline int offsets_of(Map map, int64_t d_dot, int64_t d_key) {
  return map == Map::dpfp ? static_cast<int>(d_dot / (2 * d_key)) : 0;
}
inline void check_float(const char* op, const char* name, const Tensor& x, at::IntArrayRef shape, const Tensor& q) {
  check_shape(op, name, x, shape);
  TORCH_CHECK_VALUE(x.scalar_type() == at::kFloat, op, ": ", name, " is of type ", x.scalar_type(),
                    ", expected Float");
  check_device(op, name, x, q);
}

// Contiguous, from a multiple of 16 bytes on.
inline Tensor whole_state(const Tensor& x) {
  const Tensor whole = x.contiguous();
  return reinterpret_cast<std::uintptr_t>(whole.const_data_ptr()) % 16 == 0 ? whole : whole.clone();
}

template <class V> Rows<V> rows(const Tensor& x, V* data) {
  const bool wide = x.dim() == 4;
  const int64_t head = x.dim() > 2 ? x.stride(2) : 0;
  const bool whole = wide && x.size(3) % 8 == 0 && x.stride(0) % 8 == 0 && x.stride(1) % 8 == 0 && head % 8 == 0;
  return {data, x.stride(0), x.stride(1), head, whole && reinterpret_cast<std::uintptr_t>(data) % 16 == 0};
}
inline Rows<const void> rows(const Tensor& x) { return rows<const void>(x, x.const_data_ptr()); }
inline Rows<void> mutable_rows(const Tensor& x) { return rows<void>(x, x.mutable_data_ptr()); }
inline const float* pointer(const OptionalTensor& x) { return x ? x->const_data_ptr<float>() : nullptr; }

inline int attribute(const char* op, cudaDeviceAttr what, int64_t device) {
  int value = 0;
  const cudaError_t error = cudaDeviceGetAttribute(&value, what, static_cast<int>(device));
  TORCH_CHECK(error == cudaSuccess, op, ": ", cudaGetErrorString(error));
  return value;
}

// What a block may have, at most.
inline int shared_memory(const char* op, int64_t device) {
  return attribute(op, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
}

// Why this device cannot run blocks with so many bytes of shared memory, or an empty text.
inline std::string refusal(const char* op, int64_t device, int bytes) {
  const int capability = 10 * attribute(op, cudaDevAttrComputeCapabilityMajor, device) +
                         attribute(op, cudaDevAttrComputeCapabilityMinor, device);
  if (capability < oldest_capability)
    return "the CUDA kernels need compute capability 8.0 (Ampere), this device has " + std::to_string(capability / 10) +
           "." + std::to_string(capability % 10);
  const int limit = shared_memory(op, device);
  if (bytes <= limit) return "";
  return "these sizes need " + std::to_string(bytes) + " bytes of shared memory a block, this device has " +
         std::to_string(limit);
}

}  // namespace fwp::gpu
