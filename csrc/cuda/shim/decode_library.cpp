// The decoding kernels under C names, for the tests.
#include "../kernels/decode_launch.h"
#include "device.h"

using namespace fwp::gpu;

extern "C" const char* fwp_shim_decode(const DecodeCall* call, int schedule) {
  shim::set_schedule(schedule);
  return start_decode(*call, nullptr);
}
extern "C" const char* fwp_shim_fold(const DecodeCall* call, int schedule) {
  shim::set_schedule(schedule);
  return start_fold(*call, nullptr);
}
extern "C" int fwp_shim_decode_bytes(const DecodeCall* call) { return decode_bytes(*call); }
extern "C" int fwp_shim_decode_call_size() { return sizeof(DecodeCall); }
