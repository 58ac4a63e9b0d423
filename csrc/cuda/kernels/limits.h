// What decides between instances of the kernels.
#pragma once

#include "call.h"

namespace fwp::gpu {

// Queries or keys that a block holds at a time. Calls of up to longest_chunk are served at once if a block has the shared
// memory; others are walked in pieces of walked_chunk.
constexpr int longest_chunk = 128, walked_chunk = 64;
inline bool is_walked(const Call& c) { return c.targets > c.chunk || c.sources > c.chunk; }

// Columns of values that a block of the forward holds of a state: d_value / slice_columns blocks share a head.
constexpr int slice_columns = 32;

// What an instance can do, each more than the one before and in more registers: one piece, without states, of features in
// one slab; states, and so walks; FAVOR+, features in several slabs, states that shared memory has no room for.
enum class Kind { plain, state, general };
constexpr int slab_rows = 128;  // base features held at a time, see head.cuh
inline Kind kind_of(const Call& c) {
  const bool states = c.initial_W || c.W || c.grad_W || is_walked(c);
  const bool longer = !is_walked(c) && (c.targets > walked_chunk || c.sources > walked_chunk);
  if (c.map == Map::favor || (c.map != Map::dpfp && c.d_dot > slab_rows) || (states && (longer || !c.resident)))
    return Kind::general;
  return states ? Kind::state : Kind::plain;
}
template <int LT, Kind K>
constexpr bool exists = K == Kind::plain || LT == walked_chunk || (K == Kind::general && LT > walked_chunk);
// Forward walks have few blocks, so twice the warps: one team for the queries, one for the keys.
template <Kind K> constexpr int forward_teams = K == Kind::state ? 2 : 1;
template <int LT, Kind K> constexpr bool walks = K != Kind::plain && LT == walked_chunk;  // instances that can

}  // namespace fwp::gpu
