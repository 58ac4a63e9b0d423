// Which instruction set's kernels run: the best that the processor has, or a lower one that FWP_CPU_CAPABILITY asks for.
#pragma once

#include <string>

#include "decode_call.h"
#include "recurrence_call.h"
#include "row_functions_call.h"
#include "slots_call.h"
#include "window_call.h"

namespace fwp {

const char* capability_name();
void choose_capability(const std::string& name);  // for the calls that follow; the processor's best, at most
template <class T> const Kernels<T>& chosen_kernels();
template <class T> const DecodeKernels<T>& chosen_decode_kernels();
template <class T> const RecurrenceKernels<T>& chosen_recurrence_kernels();
template <class T> const WindowKernels<T>& chosen_window_kernels();
template <class T> const SlotsKernels<T>& chosen_slots_kernels();
template <class T> const RowFunctions<T>& chosen_row_functions();

}  // namespace fwp
