// Counts what launches do, where a test or a page asks for it.
#pragma once

namespace fwp::gpu::shim::launches {

extern bool counted;
void begin(const void* kernel, int blocks, int threads);
void begin_block();
void note_product(int warp);
void note_global(int bytes);

}  // namespace fwp::gpu::shim::launches

extern "C" void fwp_shim_count(int counted);  // from now on, or no more; forgets what was counted
// One line for each launch: the kernel's symbol, blocks, threads of a block, the most tensor-core products that a warp
// made, those of all warps, and the bytes that were loaded from global memory or stored there.
extern "C" const char* fwp_shim_launches();
