#include "capability.h"

#include <c10/util/Exception.h>

#include <cstdlib>
#include <string>

namespace fwp {

#define FWP_DECLARE(name)                   \
  namespace name {                          \
  const Kernels<float>& kernels_of(float);  \
  const Kernels<double>& kernels_of(double);\
  }
FWP_DECLARE(capability_default)
#if defined(__x86_64__)
FWP_DECLARE(capability_avx2)
FWP_DECLARE(capability_avx512)
#endif
#undef FWP_DECLARE

namespace {

enum class Capability { lowest, avx2, avx512 };

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

Capability choose() {
  const char* variable = std::getenv("FWP_CPU_CAPABILITY");
  const std::string wanted = variable ? variable : "";
  const Capability best = supported();
  if (wanted.empty()) return best;
  TORCH_CHECK_VALUE(wanted == "default" || wanted == "avx2" || wanted == "avx512", "FWP_CPU_CAPABILITY is ", wanted,
                    ", expected default, avx2 or avx512");
  const Capability asked = wanted == "default" ? Capability::lowest
                           : wanted == "avx2"  ? Capability::avx2
                                               : Capability::avx512;
  return asked < best ? asked : best;
}

Capability chosen() {
  static const Capability capability = choose();
  return capability;
}

}  // namespace

const char* capability_name() {
  switch (chosen()) {
    case Capability::avx512: return "avx512";
    case Capability::avx2: return "avx2";
    default: return "default";
  }
}

template <class T> const Kernels<T>& chosen_kernels() {
#if defined(__x86_64__)
  if (chosen() == Capability::avx512) return capability_avx512::kernels_of(T());
  if (chosen() == Capability::avx2) return capability_avx2::kernels_of(T());
#endif
  return capability_default::kernels_of(T());
}
template const Kernels<float>& chosen_kernels<float>();
template const Kernels<double>& chosen_kernels<double>();

}  // namespace fwp
