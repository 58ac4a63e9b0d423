// Which instruction set's kernels run: the best that the processor has, or a lower one that FWP_CPU_CAPABILITY asks for.
#pragma once

#include "call.h"

namespace fwp {

const char* capability_name();
template <class T> const Kernels<T>& chosen_kernels();

}  // namespace fwp
