// In place of CUDA's runtime: a device with 99 kB of shared memory a block that refuses to give it.
namespace {
int last = 0, asked = 0;
}
extern "C" {
int left_error() { return last; }
int asked_bytes() { return asked; }
int cudaGetDevice(int* device) { return *device = 0; }
int cudaDeviceGetAttribute(int* value, int, int) { return *value = 99 * 1024, 0; }
int cudaFuncSetAttribute(const void*, int, int value) { return asked = value, last = 1; }
int cudaFuncGetAttributes(void*, const void*) { return last = 1; }
int cudaGetLastError() {
  const int found = last;
  return last = 0, found;
}
const char* cudaGetErrorString(int) { return "refused"; }
// What nvcc puts around a launch, which is not reached: CUDA 12, then 13.
int cudaLaunchKernel() { return 0; }
int __cudaPushCallConfiguration() { return 0; }
int __cudaPopCallConfiguration() { return 0; }
int __cudaLaunchKernel() { return 0; }
int __cudaGetKernel() { return 0; }
char __cudaInitModule() { return 0; }
void** __cudaRegisterFatBinary(void*) { return nullptr; }
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
void __cudaRegisterFunction() {}
}
