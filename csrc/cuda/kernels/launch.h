// The kernels as host functions, for launch.cpp and for the tests' library. `stream` is a cudaStream_t; null is returned,
// or what is wrong.
#pragma once

#include "call.h"

namespace fwp::gpu {

constexpr int longest_chunk = 128;  // queries or keys that one block serves

// General instances also serve FAVOR+, features in more than one slab, and states.
constexpr int slab_rows = 128;  // base features held at a time, see head.cuh
inline bool is_general(const Call& c) {
  return c.map == Map::favor || (c.map != Map::dpfp && c.d_dot > slab_rows) || c.initial_W || c.W || c.grad_W;
}

int bytes_half(const Call& call, bool backward);  // shared memory of a block
int bytes_single(const Call& call, bool backward);
const char* forward_half(const Call& call, void* stream);
const char* forward_half_general(const Call& call, void* stream);
const char* forward_single(const Call& call, void* stream);
const char* forward_single_general(const Call& call, void* stream);
const char* backward_half(const Call& call, void* stream);
const char* backward_half_general(const Call& call, void* stream);
const char* backward_single(const Call& call, void* stream);
const char* backward_single_general(const Call& call, void* stream);

inline int bytes(const Call& call, bool backward) {
  return call.type == Type::float32 ? bytes_single(call, backward) : bytes_half(call, backward);
}
inline const char* forward(const Call& call, void* stream) {
  if (call.type == Type::float32)
    return is_general(call) ? forward_single_general(call, stream) : forward_single(call, stream);
  return is_general(call) ? forward_half_general(call, stream) : forward_half(call, stream);
}
inline const char* backward(const Call& call, void* stream) {
  if (call.type == Type::float32)
    return is_general(call) ? backward_single_general(call, stream) : backward_single(call, stream);
  return is_general(call) ? backward_half_general(call, stream) : backward_half(call, stream);
}

}  // namespace fwp::gpu
