// Which instruction set's kernels run: the best that the processor has, or a lower one that FWP_CPU_CAPABILITY asks
// for.
#pragma once

#include <string>

#include "kernel_table.h"

namespace fwp {

const char* capability_name();
void choose_capability(const std::string& name);  // for the calls that follow; the processor's best, at most
template <class T> const KernelTable<T>& chosen_kernels();  // kernels.h fills in the tables

}  // namespace fwp
