// The kernels as host functions, for launch.cpp and for the tests' library. `stream` is a cudaStream_t; null is returned,
// or what is wrong.
#pragma once

#include "call.h"

namespace fwp::gpu {

constexpr int longest_chunk = 128;  // queries or keys that one block serves

int forward_bytes_half(const Call& call);  // shared memory of a block
int forward_bytes_single(const Call& call);
const char* forward_half(const Call& call, void* stream);
const char* forward_single(const Call& call, void* stream);
int backward_bytes_half(const Call& call);
int backward_bytes_single(const Call& call);
const char* backward_half(const Call& call, void* stream);
const char* backward_single(const Call& call, void* stream);

inline int forward_bytes(const Call& call) {
  return call.type == Type::float32 ? forward_bytes_single(call) : forward_bytes_half(call);
}
inline const char* forward(const Call& call, void* stream) {
  return call.type == Type::float32 ? forward_single(call, stream) : forward_half(call, stream);
}
inline int backward_bytes(const Call& call) {
  return call.type == Type::float32 ? backward_bytes_single(call) : backward_bytes_half(call);
}
inline const char* backward(const Call& call, void* stream) {
  return call.type == Type::float32 ? backward_single(call, stream) : backward_half(call, stream);
}

}  // namespace fwp::gpu
