#include "capability.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <iterator>
#include <string>

namespace fwp {

#define FWP_DECLARE(name)                                            \
  namespace name {                                                   \
  const Kernels<float>& kernels_of(float);                           \
  const Kernels<double>& kernels_of(double);                         \
  const DecodeKernels<float>& decode_kernels_of(float);              \
  const DecodeKernels<double>& decode_kernels_of(double);            \
  const RecurrenceKernels<float>& recurrence_kernels_of(float);      \
  const RecurrenceKernels<double>& recurrence_kernels_of(double);    \
  const WindowKernels<float>& window_kernels_of(float);              \
  const WindowKernels<double>& window_kernels_of(double);            \
  const SlotsKernels<float>& slots_kernels_of(float);                \
  const SlotsKernels<double>& slots_kernels_of(double);              \
  const RowFunctions<float>& row_functions_of(float);                \
  const RowFunctions<double>& row_functions_of(double);              \
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

#if defined(__x86_64__)
#define FWP_CHOOSE(function)                                                             \
  if (chosen() >= Capability::avx512) return capability_avx512::function(T());           \
  if (chosen() == Capability::avx2) return capability_avx2::function(T());               \
  return capability_default::function(T());
#else
#define FWP_CHOOSE(function) return capability_default::function(T());
#endif
template <class T> const Kernels<T>& chosen_kernels() { FWP_CHOOSE(kernels_of) }
template <class T> const DecodeKernels<T>& chosen_decode_kernels() { FWP_CHOOSE(decode_kernels_of) }
template <class T> const RecurrenceKernels<T>& chosen_recurrence_kernels() { FWP_CHOOSE(recurrence_kernels_of) }
template <class T> const WindowKernels<T>& chosen_window_kernels() { FWP_CHOOSE(window_kernels_of) }
template <class T> const SlotsKernels<T>& chosen_slots_kernels() { FWP_CHOOSE(slots_kernels_of) }
template <class T> const RowFunctions<T>& chosen_row_functions() { FWP_CHOOSE(row_functions_of) }
#undef FWP_CHOOSE
template const Kernels<float>& chosen_kernels<float>();
template const Kernels<double>& chosen_kernels<double>();
template const DecodeKernels<float>& chosen_decode_kernels<float>();
template const DecodeKernels<double>& chosen_decode_kernels<double>();
template const RecurrenceKernels<float>& chosen_recurrence_kernels<float>();
template const RecurrenceKernels<double>& chosen_recurrence_kernels<double>();
template const WindowKernels<float>& chosen_window_kernels<float>();
template const WindowKernels<double>& chosen_window_kernels<double>();
template const SlotsKernels<float>& chosen_slots_kernels<float>();
template const SlotsKernels<double>& chosen_slots_kernels<double>();
template const RowFunctions<float>& chosen_row_functions<float>();
template const RowFunctions<double>& chosen_row_functions<double>();

}  // namespace fwp
