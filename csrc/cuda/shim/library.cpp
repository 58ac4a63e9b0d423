// The kernels under C names, for the tests.
#include "../kernels/launch_backward.h"
#include "../kernels/state.cuh"
#include "device.h"

using namespace fwp::gpu;

extern "C" const char* fwp_shim_forward(const Call* call, int schedule) {
  shim::set_schedule(schedule);
  return forward(*call, nullptr);
}
extern "C" const char* fwp_shim_backward(const Pieces* call, int schedule) {
  shim::set_schedule(schedule);
  return backward(*call, nullptr);
}
extern "C" void fwp_shim_fit(Call* call, int limit) { fit(*call, false, limit); }
extern "C" void fwp_shim_fit_backward(Pieces* call, int limit) { fit(*call, limit); }
extern "C" int fwp_shim_bytes(const Call* call) { return most_bytes(*call); }
extern "C" int fwp_shim_bytes_backward(const Pieces* call) { return most_bytes(*call); }
extern "C" int fwp_shim_slices(const Call* call) { return slices(*call); }
extern "C" int fwp_shim_segmented(const Call* call) { return is_segmented(*call); }
extern "C" void fwp_shim_group(Pieces* call) { group(*call); }
extern "C" int64_t fwp_shim_workspace(const Pieces* call) { return workspace_of(*call); }
// 0 where the call is not done in pieces.
extern "C" int64_t fwp_shim_forward_workspace(const Call* call, int multiprocessors) {
  return is_in_pieces(*call, multiprocessors) ? workspace_of(*call) : 0;
}
extern "C" void fwp_shim_place_pieces(Call* call, float* workspace) { place_pieces(*call, workspace); }
extern "C" int fwp_shim_call_size() { return sizeof(Call); }
extern "C" int fwp_shim_pieces_size() { return sizeof(Pieces); }
