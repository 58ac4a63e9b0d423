// The recurrences' kernels under C names, for the tests.
#include "../kernels/recurrence_launch.h"
#include "device.h"

using namespace fwp::gpu;

extern "C" const char* fwp_shim_recurrence(int kernel, const RecurrenceCall* call, int schedule) {
  shim::set_schedule(schedule);
  return launch_recurrence(fwp::RecurrenceKernel(kernel), *call, nullptr);
}
extern "C" int fwp_shim_recurrence_call_size() { return sizeof(RecurrenceCall); }
extern "C" const char* fwp_shim_lstm(int kernel, const LstmCall* call, int schedule) {
  shim::set_schedule(schedule);
  return launch_lstm(fwp::RecurrenceKernel(kernel), *call, nullptr);
}
extern "C" int fwp_shim_lstm_call_size() { return sizeof(LstmCall); }
