// Functions that the CUDA operators share: checks of types, the launch of kernels, and queries to the device.
#pragma once

#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <string>

#include "../common/inputs.h"
#include "kernels/call.h"

namespace fwp::gpu {

constexpr int oldest_capability = 80;

inline Type type_of(const char* op, const char* name, at::ScalarType type) {
  if (type == at::kHalf) return Type::float16;
  if (type == at::kBFloat16) return Type::bfloat16;
  if (type == at::kFloat) return Type::float32;
  TORCH_CHECK_VALUE(false, op, ": ", name, " is of type ", type, ", expected Half, BFloat16 or Float on CUDA");
}
inline void check_sizes(const char* op, const char* name, at::ScalarType type, int64_t d_key) {
  type_of(op, name, type);
  TORCH_CHECK_VALUE(d_key > 0, op, ": d_key = ", d_key, ", expected at least 1 on CUDA");
}
inline void check_float(const char* op, const char* name, at::ScalarType type) {
  TORCH_CHECK_VALUE(type == at::kFloat, op, ": ", name, " is of type ", type, ", expected Float on CUDA");
}

template <class Call> void start(const char* op, const char* (*kernels)(const Call&, void*), const Call& call) {
  const char* error = kernels(call, c10::cuda::getCurrentCUDAStream().stream());
  TORCH_CHECK(error == nullptr, op, ": ", error);
}

inline int attribute(const char* op, cudaDeviceAttr what, int64_t device) {
  int value = 0;
  const cudaError_t error = cudaDeviceGetAttribute(&value, what, static_cast<int>(device));
  TORCH_CHECK(error == cudaSuccess, op, ": ", cudaGetErrorString(error));
  return value;
}

// Returns the largest number of bytes of shared memory that a block may use.
inline int shared_memory(const char* op, int64_t device) {
  return attribute(op, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
}

// Returns the reason why this device cannot run blocks that use so many bytes of shared memory; empty if it can.
inline std::string refusal(const char* op, int64_t device, int bytes) {
  const int capability = 10 * attribute(op, cudaDevAttrComputeCapabilityMajor, device) +
                         attribute(op, cudaDevAttrComputeCapabilityMinor, device);
  if (capability < oldest_capability)
    return "the CUDA kernels need compute capability 8.0 (Ampere), this device has " + std::to_string(capability / 10) +
           "." + std::to_string(capability % 10);
  const c10::cuda::CUDAGuard guard(c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(device)));
  if (const char* error = missing_code())
    return "the CUDA kernels are not compiled for this device, of compute capability " +
           std::to_string(capability / 10) + "." + std::to_string(capability % 10) + " (" + error + ")";
  const int limit = shared_memory(op, device);
  if (bytes <= limit) return "";
  return "these sizes need " + std::to_string(bytes) + " bytes of shared memory a block, this device has " +
         std::to_string(limit);
}

}  // namespace fwp::gpu
