// Stands in for c10's header where the glue is compiled for the CPU: there is one device, so nothing to change to.
#pragma once

#include <c10/core/Device.h>

namespace c10::cuda {
struct CUDAGuard {
  explicit CUDAGuard(Device) {}
};
}  // namespace c10::cuda
