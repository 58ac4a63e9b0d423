// A race detector. The compiler's instrumentation for ThreadSanitizer (-fsanitize=thread) reports every access of the
// kernels' sources; accesses.cpp hands those of a running kernel to this.
//
// Barriers order what threads do: those of a warp by sync_warp, those of several warps by a barrier of the block. A
// warp has a vector clock, which counts its own barriers and those of each other warp that are known to be over
// (Mattern, Virtual time and global states of distributed systems, 1989). For every two bytes of memory stand the last
// write and each warp's last reads with the clock of their time. Two accesses of different threads, one of them a
// write, that no barrier orders are a race, whether or not it shows in the results. Blocks of a launch are never
// ordered.
#pragma once

#include <string>

namespace fwp::gpu::shim::races {

extern bool watched;  // whether accesses are wanted now

void begin_launch(int warps, const char* shared, int shared_bytes);
void begin_block(int block);
void order_warp(int warp);
void order_warps(unsigned warps);  // one bit each: they met at a barrier

// Notes an access by `thread`, or by its whole warp. Returns whether it is a race, and then tells in `race` of what.
bool access(int thread, bool whole_warp, const void* address, int bytes, bool write, std::string& race);

}  // namespace fwp::gpu::shim::races

// Whether the launches that follow are watched.
extern "C" void fwp_shim_watch(int watched);
