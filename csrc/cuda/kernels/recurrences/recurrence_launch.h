// The recurrences' kernels as host functions: what other code includes. No torch header, no CUDA.
#pragma once

#include "../../../common/recurrence_call.h"
#include "../call.h"

namespace fwp::gpu {

using RecurrenceCall = RecurrenceFields<float, Rows>;
using LstmCall = LstmFields<float, Rows>;

constexpr int widest_recurrence = 128;  // the largest d: two or three matrices fill the registers of a block

// `stream` is a cudaStream_t. Returns null, or what is wrong.
const char* launch_recurrence(RecurrenceKernel kernel, const RecurrenceCall& call, void* stream);
const char* launch_lstm(RecurrenceKernel kernel, const LstmCall& call, void* stream);

}  // namespace fwp::gpu
