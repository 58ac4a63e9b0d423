// What torch requires before it makes CUDA tensors, and what the device answers that the glue asks. See
// tests/cuda/emulated_device.py.
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <cuda_runtime_api.h>

#include <string>

#include "device.h"

namespace fwp::gpu::shim {

Device device;

struct Guard final : c10::impl::NoOpDeviceGuardImpl<c10::DeviceType::CUDA> {
  c10::Device getDevice() const override { return {c10::DeviceType::CUDA, 0}; }
  c10::Stream getStream(c10::Device device) const noexcept override {
    return c10::Stream(c10::Stream::DEFAULT, device);
  }
  // Nothing is asynchronous.
  void record(void**, const c10::Stream&, c10::DeviceIndex, c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
};

struct Hooks final : at::CUDAHooksInterface {
  explicit Hooks(at::CUDAHooksArgs) {}
  void init() const override {}
  bool isBuilt() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex current_device() const override { return 0; }
};

}  // namespace fwp::gpu::shim

namespace at {
// Under the name that torch looks for. A build of torch with CUDA has hooks of its own, which these outrank.
C10_REGISTER_CLASS_WITH_PRIORITY(CUDAHooksRegistry, CUDAHooks, c10::REGISTRY_PREFERRED, fwp::gpu::shim::Hooks)
}  // namespace at

// To be called after torch is loaded, because the last guard that was registered is the one that counts.
extern "C" void fwp_shim_guard() {
  static const c10::impl::DeviceGuardImplRegistrar registered(c10::DeviceType::CUDA, new fwp::gpu::shim::Guard);
}

extern "C" void fwp_shim_device(int major, int minor, int shared_memory, int multiprocessors, const char* missing) {
  static std::string text;
  text = missing;
  fwp::gpu::shim::device = {major, minor, shared_memory, multiprocessors};
  fwp::gpu::shim::missing_code = text.empty() ? nullptr : text.c_str();
}

// Of a block of the last launch.
extern "C" int fwp_shim_shared_bytes() { return fwp::gpu::shim::shared_bytes(); }
