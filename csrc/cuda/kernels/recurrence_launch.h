// The recurrences' kernels as a host function: what other code includes. No torch header, no CUDA.
#pragma once

#include "../../common/recurrence_call.h"
#include "call.h"

namespace fwp::gpu {

using RecurrenceCall = RecurrenceFields<float, Rows>;

constexpr int widest_recurrence = 128;  // the largest d: two matrices fill the registers of a block

// `stream` is a cudaStream_t. Returns null, or what is wrong.
const char* launch_recurrence(RecurrenceKernel kernel, const RecurrenceCall& call, void* stream);

}  // namespace fwp::gpu
