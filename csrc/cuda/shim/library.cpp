// The kernels under C names, for the tests.
#include "../kernels/launch.h"
#include "../kernels/state.cuh"
#include "device.h"

using namespace fwp::gpu;

extern "C" const char* fwp_shim_forward(const Call* call, int schedule) {
  shim::set_schedule(schedule);
  return forward(*call, nullptr);
}
extern "C" const char* fwp_shim_backward(const Call* call, int schedule) {
  shim::set_schedule(schedule);
  return backward(*call, nullptr);
}
extern "C" int fwp_shim_bytes(const Call* call, int backward) { return most_bytes(*call, backward); }
extern "C" void fwp_shim_fit(Call* call, int backward, int limit) { fit(*call, backward, limit); }
extern "C" int fwp_shim_slices(const Call* call) { return slices(*call); }
extern "C" int fwp_shim_segmented(const Call* call) { return is_segmented(*call); }
extern "C" int fwp_shim_checkpoints(const Call* call) { return checkpoints_of(*call); }
extern "C" int fwp_shim_states(const Call* call) { return states_of(*call); }
extern "C" int fwp_shim_call_size() { return sizeof(Call); }
