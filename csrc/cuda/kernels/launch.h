// The kernels as host functions, for launch.cpp and for the tests' library. `stream` is a cudaStream_t; null is returned,
// or what is wrong. Kernel sources do not include this: with it each of them would compile every instance.
#pragma once

#include "call.h"
#include "limits.h"

namespace fwp::gpu {

struct Half;  // the two precisions, see operands.cuh
struct Single;

// Instances, each in a source file of its own so that they compile at the same time.
template <class P> int bytes_of(const Call& call, bool backward);
template <class P, bool DELTA, bool GENERAL> const char* launch_forward(const Call& call, void* stream);
template <class P, bool DELTA, bool GENERAL> const char* launch_backward(const Call& call, void* stream);

template <class P> const char* forward_of(const Call& call, void* stream) {
  if (call.rule == Rule::delta)
    return is_general(call) ? launch_forward<P, true, true>(call, stream) : launch_forward<P, true, false>(call, stream);
  return is_general(call) ? launch_forward<P, false, true>(call, stream) : launch_forward<P, false, false>(call, stream);
}
template <class P> const char* backward_of(const Call& call, void* stream) {
  if (call.rule == Rule::delta)
    return is_general(call) ? launch_backward<P, true, true>(call, stream) : launch_backward<P, true, false>(call, stream);
  return is_general(call) ? launch_backward<P, false, true>(call, stream) : launch_backward<P, false, false>(call, stream);
}

// Shared memory of a block.
inline int bytes(const Call& call, bool backward) {
  return call.type == Type::float32 ? bytes_of<Single>(call, backward) : bytes_of<Half>(call, backward);
}
inline const char* forward(const Call& call, void* stream) {
  return call.type == Type::float32 ? forward_of<Single>(call, stream) : forward_of<Half>(call, stream);
}
inline const char* backward(const Call& call, void* stream) {
  if (is_walked(call)) {
    Call writing = call;  // the keys alone
    writing.targets = writing.causal = 0;
    if (const char* error = forward(writing, stream)) return error;
  }
  return call.type == Type::float32 ? backward_of<Single>(call, stream) : backward_of<Half>(call, stream);
}

// Sets what depends on the device, `chunk` and `resident`, for blocks with at most `limit` bytes of shared memory. The
// states that the caller wants must have been set.
inline void fit(Call& call, bool backward, int limit) {
  call.chunk = longest_chunk;
  call.resident = 1;
  if (is_walked(call) || bytes(call, backward) > limit) call.chunk = walked_chunk;
  call.resident = bytes(call, false) <= limit;
}
// What `checkpoints` should be for the backward of a walked call, and for how many states W and z then need room: about
// 2 sqrt(pieces), the least.
inline int checkpoints_of(const Call& call) {
  int found = 1;
  while (found * found * call.chunk < call.sources) ++found;
  return found;
}
inline int states_of(const Call& call) {
  const int every = checkpoints_of(call), group = every * call.chunk;
  return (call.sources + group - 1) / group + every;
}

}  // namespace fwp::gpu
