// What decides between instances of the kernels.
#pragma once

#include "call.h"

namespace fwp::gpu {

// Queries or keys that a block holds at a time. Calls of up to longest_chunk are served at once if a block has the shared
// memory; others are walked in pieces of walked_chunk.
constexpr int longest_chunk = 128, walked_chunk = 64;
inline bool is_walked(const Call& c) { return c.targets > c.chunk || c.sources > c.chunk; }
template <int LT, bool GENERAL> constexpr bool walks = GENERAL && LT == walked_chunk;  // instances that can

// Columns of values that a block of the forward holds of a state: d_value / slice_columns blocks share a head.
constexpr int slice_columns = 32;

// General instances also serve FAVOR+, features in more than one slab, and states.
constexpr int slab_rows = 128;  // base features held at a time, see head.cuh
inline bool is_general(const Call& c) {
  return c.map == Map::favor || (c.map != Map::dpfp && c.d_dot > slab_rows) || c.initial_W || c.W || c.grad_W ||
         is_walked(c);
}

}  // namespace fwp::gpu
