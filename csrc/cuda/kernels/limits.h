// What decides between instances of the kernels.
#pragma once

#include "call.h"

namespace fwp::gpu {

constexpr int longest_chunk = 128;  // queries or keys that one block serves

// General instances also serve FAVOR+, features in more than one slab, and states.
constexpr int slab_rows = 128;  // base features held at a time, see head.cuh
inline bool is_general(const Call& c) {
  return c.map == Map::favor || (c.map != Map::dpfp && c.d_dot > slab_rows) || c.initial_W || c.W || c.grad_W;
}

}  // namespace fwp::gpu
