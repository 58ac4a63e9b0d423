// The places in the sources where barriers stand: which of them kernels come to, and one that can be left out, to see
// whether the tests notice.
#pragma once

#include <string>

#include "device.h"

namespace fwp::gpu::shim {

// Adds a place that `barrier` ("block", "warp") was met at. Threads that meet from different places name them
// all.
void note_place(const char* barrier, const Site* sites, int count);
bool is_left_out(Site site);
std::string name_of(Site site);  // file:line

}  // namespace fwp::gpu::shim

// One line for each barrier since the last call: its kind and its places, "block a.cuh:12 a.cuh:20". The text lasts
// until the next call.
extern "C" const char* fwp_shim_places();
// Leaves out the barrier at the places "a.cuh:12 a.cuh:20", or none for "".
extern "C" void fwp_shim_leave_out(const char* places);
