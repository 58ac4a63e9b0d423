// The functions of rows under C names, for the tests.
#include "../kernels/row_functions_launch.h"
#include "device.h"

using namespace fwp::gpu;

extern "C" const char* fwp_shim_row_function(const RowFunctionCall* call, int schedule) {
  shim::set_schedule(schedule);
  return launch_row_function(*call, nullptr);
}
extern "C" int fwp_shim_row_function_call_size() { return sizeof(RowFunctionCall); }
