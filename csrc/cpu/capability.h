// Which instruction set's kernels run: the best that the processor has, or a lower one that FWP_CPU_CAPABILITY asks for.
#pragma once

#include <string>

#include "decode_call.h"
#include "recurrence_call.h"
#include "row_functions_call.h"
#include "slots_call.h"
#include "window_call.h"

// Whether the compiler knows AMX and the system is Linux, which is asked for permission to use it.
#if defined(__x86_64__) && defined(__linux__) && defined(__has_include)
#if __has_include(<amxbf16intrin.h>) && __has_include(<avx512bf16intrin.h>)
#define FWP_HAS_AMX_BF16 1
#endif
#endif

namespace fwp {

const char* capability_name();
void choose_capability(const std::string& name);  // for the calls that follow; the processor's best, at most
template <class T> const Kernels<T>& chosen_kernels();
template <class T> const DecodeKernels<T>& chosen_decode_kernels();
template <class T> const RecurrenceKernels<T>& chosen_recurrence_kernels();
template <class T> const WindowKernels<T>& chosen_window_kernels();
template <class T> const SlotsKernels<T>& chosen_slots_kernels();
template <class T> const RowFunctions<T>& chosen_row_functions();
const KernelsBf16* chosen_bf16_kernels();  // null: bfloat16 is computed in float

}  // namespace fwp
