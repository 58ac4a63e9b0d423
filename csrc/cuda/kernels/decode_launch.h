// The decoding kernels as host functions, for decode_launch.cpp and for the tests' library. `stream` is a cudaStream_t.
// They return null, or what is wrong.
#pragma once

#include "decode_call.h"

namespace fwp::gpu {

struct Half;  // the two precisions, see operands.cuh
struct Single;

// Instances, each precision in a source file of its own.
template <class P> int decode_bytes_of(const DecodeCall& call);
template <class P> const char* launch_decode(const DecodeCall& call, void* stream);
template <class P> const char* launch_fold(const DecodeCall& call, void* stream);

// Bytes of shared memory of a block, of the larger of the two.
inline int decode_bytes(const DecodeCall& call) {
  return call.type == Type::float32 ? decode_bytes_of<Single>(call) : decode_bytes_of<Half>(call);
}
inline const char* start_decode(const DecodeCall& call, void* stream) {
  if (call.nu > most_offsets) return "more offsets than there is room for";
  if (call.strengths && call.count + call.tokens > most_weighed) return "more positions than there is room for";
  return call.type == Type::float32 ? launch_decode<Single>(call, stream) : launch_decode<Half>(call, stream);
}
inline const char* start_fold(const DecodeCall& call, void* stream) {
  return call.type == Type::float32 ? launch_fold<Single>(call, stream) : launch_fold<Half>(call, stream);
}

}  // namespace fwp::gpu
