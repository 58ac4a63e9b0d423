// Stands in for CUDA's header where the glue is compiled for the CPU: what it asks of a device, answered as by an H200
// unless `device` says otherwise.
#pragma once

enum cudaError_t { cudaSuccess, cudaErrorInvalidValue };
enum cudaDeviceAttr {
  cudaDevAttrComputeCapabilityMajor,
  cudaDevAttrComputeCapabilityMinor,
  cudaDevAttrMaxSharedMemoryPerBlockOptin,
  cudaDevAttrMultiProcessorCount,
};

namespace fwp::gpu::shim {
struct Device {
  int major = 9, minor = 0, shared_memory = 227 * 1024, multiprocessors = 132;
};
extern Device device;
}  // namespace fwp::gpu::shim

inline cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr what, int) {
  const auto& device = fwp::gpu::shim::device;
  switch (what) {
    case cudaDevAttrComputeCapabilityMajor:
      *value = device.major;
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor:
      *value = device.minor;
      return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = device.shared_memory;
      return cudaSuccess;
    case cudaDevAttrMultiProcessorCount:
      *value = device.multiprocessors;
      return cudaSuccess;
  }
  return cudaErrorInvalidValue;
}
inline const char* cudaGetErrorString(cudaError_t) { return "invalid argument"; }
