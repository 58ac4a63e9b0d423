#include "capability.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <iterator>
#include <string>

namespace fwp {

#define FWP_DECLARE(name)                                                                                              \
  namespace name {                                                                                                     \
  const KernelTable<float>& kernels(float);                                                                            \
  const KernelTable<double>& kernels(double);                                                                          \
  }
FWP_DECLARE(capability_default)
#if defined(__x86_64__)
FWP_DECLARE(capability_avx2)
FWP_DECLARE(capability_avx512)
#endif
#undef FWP_DECLARE
namespace {

enum class Capability { lowest, avx2, avx512 };  // in the order of `names`
constexpr const char* names[] = {"default", "avx2", "avx512"};

Capability supported() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return Capability::lowest;
  for (bool has : {bool(__builtin_cpu_supports("avx512f")), bool(__builtin_cpu_supports("avx512dq")),
                   bool(__builtin_cpu_supports("avx512bw")), bool(__builtin_cpu_supports("avx512vl"))})
    if (!has) return Capability::avx2;
  return Capability::avx512;
#else
  return Capability::lowest;
#endif
}

Capability named(const std::string& name, const char* who) {
  const auto* found = std::find(std::begin(names), std::end(names), name);
  TORCH_CHECK_VALUE(found != std::end(names), who, " is ", name, ", expected default, avx2 or avx512");
  return std::min(static_cast<Capability>(found - names), supported());
}

std::atomic<Capability>& chosen() {
  static std::atomic<Capability> capability = [] {
    const char* variable = std::getenv("FWP_CPU_CAPABILITY");
    return variable && *variable ? named(variable, "FWP_CPU_CAPABILITY") : supported();
  }();
  return capability;
}

}  // namespace

const char* capability_name() { return names[static_cast<int>(chosen().load())]; }

void choose_capability(const std::string& name) { chosen() = named(name, "the instruction set"); }

template <class T> const KernelTable<T>& chosen_kernels() {
#if defined(__x86_64__)
  if (chosen() == Capability::avx512) return capability_avx512::kernels(T());
  if (chosen() == Capability::avx2) return capability_avx2::kernels(T());
#endif
  return capability_default::kernels(T());
}
template const KernelTable<float>& chosen_kernels<float>();
template const KernelTable<double>& chosen_kernels<double>();

}  // namespace fwp
