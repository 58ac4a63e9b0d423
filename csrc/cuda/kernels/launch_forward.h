// The launches of a forward, and the room that they need. No torch header, no CUDA.
//
// One launch serves any call: a block takes the segments of its head, or of its columns of a state, one after the other. Where
// so few blocks leave most of a GPU idle, a long causal call is done in pieces, of which only the walk is sequential:
//
//     solve      for each segment: the inverted system, for rules that correct
//     write      walks over the keys and leaves the state after each segment, and E
//     read       for each segment: outputs
//
// It computes the same numbers, but for the order in which a system is solved. Its price is the states' way through memory.
#pragma once

#include "launch.h"

namespace fwp::gpu {

// The same call with its keys alone, which leaves states.
inline Call writing_of(const Call& call) {
  Call found = call;
  found.targets = found.causal = 0;
  lay_features(found, false);
  return found;
}

// Sets what lies in the workspace; returns its floats.
inline int64_t place_pieces(Call& call, float* workspace) {
  Workspace room{workspace};
  const int64_t count = key_segments_of(call), tokens = corrects(call.rule) ? heads_of(call) * count * short_segment : 0;
  room.take(call.between_W, (count - 1) * floats_of_W(call));
  room.take(call.between_z, (count - 1) * floats_of_z(call));
  room.take(call.inverses, tokens + tokens * short_segment);  // with the keys' scales
  room.take(call.missing, tokens * slices_of(call) * slice_columns);
  return room.used;
}
inline int64_t workspace_of(Call call) { return place_pieces(call, nullptr); }

// Whether a call is done in pieces: where with a block on a multiprocessor half of these would be idle, and where there are
// enough segments for two further launches to be paid for. A segment's walk has a quarter of its products under the rules
// that do not correct, two thirds under the others, and no inverse. The general kernels have no pieces; a system that the
// state has a part in has no inverse before the walk.
constexpr int fewest_pieces = 4;
inline bool is_in_pieces(const Call& call, int multiprocessors) {
  return call.causal && kind_of(call) == Kind::state && key_segments_of(call) >= fewest_pieces &&
         2 * heads_of(call) * slices_of(call) <= multiprocessors && !(corrects(call.rule) && call.normalize_output) &&
         workspace_of(call) <= largest_workspace;
}

// Calls f(operation, kind) for a call whose segments have states and no general kernel.
template <class F> const char* with_state_instance(const Call& call, F f) {
  return with_instance(call, [&](auto operation, auto kind) -> const char* {
    if constexpr (decltype(kind)::kind == Kind::state) return f(operation);
    else return "no instance";
  });
}
inline const char* forward_in_pieces(const Call& call, void* stream) {
  return with_state_instance(call, [&](auto operation) -> const char* {
    using O = decltype(operation);
    using P = typename O::Precision;
    const Call writing = writing_of(call);
    if constexpr (corrects(O::rule))
      if (const char* error = launch_solve<P, O::rule, Kind::state>(writing, stream)) return error;
    if (const char* error = launch_write<P, O::rule, Kind::state>(writing, stream)) return error;
    return launch_read<P, O::rule, Kind::state>(call, stream);
  });
}

inline const char* forward(const Call& call, void* stream) {
  if (call.between_W) return forward_in_pieces(call, stream);
  return with_instance(call, [&](auto operation, auto kind) {
    using O = decltype(operation);
    return launch_forward<typename O::Precision, O::rule, decltype(kind)::kind>(call, stream);
  });
}

}  // namespace fwp::gpu
