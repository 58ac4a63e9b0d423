// What device.cuh asks CUDA's runtime for, on the stand-ins of refusing_runtime.cpp, which refuse it.
#include <cstring>

#include "kernels/device.cuh"

extern "C" int left_error();
extern "C" int asked_bytes();

__global__ void kernel(int) {}

int main() {
  const char* said = fwp::gpu::launch(kernel, 1, 32, 64 * 1024, nullptr, 0);
  if (said == nullptr || std::strcmp(said, "refused")) return 1;
  if (left_error()) return 2;  // whoever asks CUDA next would take it for its own
  const char* missing = fwp::gpu::missing_code(kernel);
  if (missing == nullptr || std::strcmp(missing, "refused") || left_error()) return 4;
  return asked_bytes() == 99 * 1024 ? 0 : 3;  // all that the device has: threads that launch at once agree on that
}
