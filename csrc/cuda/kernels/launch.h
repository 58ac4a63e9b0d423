// The kernels as host functions, for launch.cpp and for the tests' library. `stream` is a cudaStream_t. Null is
// returned, or what is wrong. Kernel sources do not include this file: each of them would compile every instance.
#pragma once

#include <type_traits>

#include "call.h"
#include "limits.h"

namespace fwp::gpu {

struct Half;  // the two precisions, see operands.cuh
struct Single;

// Instances, each in a source file of its own so that they compile at the same time.
template <class P> int bytes_of(const Call& call, bool backward);
template <class P, Rule R, Kind K> const char* launch_forward(const Call& call, void* stream);
template <class P, Rule R, Kind K> const char* launch_backward(const Call& call, void* stream);

template <class P, Rule R, Kind K> const char* launched(const Call& call, bool backward, void* stream) {
  if constexpr (!has_instance(R, K, std::is_same_v<P, Single>)) return "no instance";  // kind_of never asks for it
  else return backward ? launch_backward<P, R, K>(call, stream) : launch_forward<P, R, K>(call, stream);
}
template <class P, Rule R> const char* launched(const Call& call, bool backward, void* stream) {
  switch (kind_of(call)) {
    case Kind::plain: return launched<P, R, Kind::plain>(call, backward, stream);
    case Kind::favor: return launched<P, R, Kind::favor>(call, backward, stream);
    case Kind::state: return launched<P, R, Kind::state>(call, backward, stream);
    case Kind::general: return launched<P, R, Kind::general>(call, backward, stream);
  }
  return "no instance";
}
template <class P> const char* launched(const Call& call, bool backward, void* stream) {
  return with_rule(call.rule, [&](auto rule) {
    return launched<P, decltype(rule)::value>(call, backward, stream);
  });
}
inline const char* launched(const Call& call, bool backward, void* stream) {
  return call.type == Type::float32 ? launched<Single>(call, backward, stream) : launched<Half>(call, backward, stream);
}

// Bytes of shared memory of a block.
inline int bytes(const Call& call, bool backward) {
  return call.type == Type::float32 ? bytes_of<Single>(call, backward) : bytes_of<Half>(call, backward);
}
// The forward before the backward of a call of several segments. It takes the keys alone and stores their states.
inline Call writing_of(Call call) {
  call.targets = call.causal = 0;
  lay_features(call, false);
  return call;
}
// The most that a launch of the call needs.
inline int most_bytes(const Call& call, bool backward) {
  const int own = bytes(call, backward), before = backward && is_segmented(call) ? bytes(writing_of(call), false) : 0;
  return own > before ? own : before;
}
inline const char* forward(const Call& call, void* stream) { return launched(call, false, stream); }
inline const char* backward(const Call& call, void* stream) {
  if (is_segmented(call)) {
    if (const char* error = forward(writing_of(call), stream)) return error;
  }
  return launched(call, true, stream);
}

// Sets what depends on the device, the members `segment` to `resident`, for blocks with at most `limit` bytes of shared
// memory. The pointers to the states that the caller wants must already be set.
inline void fit(Call& call, bool backward, int limit) {
  call.segment = longest_segment;
  call.together = call.type != Type::float32;
  call.resident = 1;
  lay_features(call, backward);
  if (!serves_states(kind_of(call)) && bytes(call, backward) <= limit) return;
  call.segment = short_segment;
  call.together = 0;
  lay_features(call, backward);
  call.resident = bytes(backward ? writing_of(call) : call, false) <= limit;
}
// `checkpoints` for the backward of a call of several segments, and for how many states W and z then need room. That is
// about 2 sqrt(segments), the least possible.
inline int checkpoints_of(const Call& call) {
  int found = 1;
  while (found * found * call.segment < call.sources) ++found;
  return found;
}
inline int states_of(const Call& call) {
  const int every = checkpoints_of(call), group = every * call.segment;
  return (call.sources + group - 1) / group + every;
}

}  // namespace fwp::gpu
