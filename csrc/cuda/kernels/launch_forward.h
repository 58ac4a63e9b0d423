// The launches of a forward, and the room that they need. No torch header, no CUDA.
//
// One launch serves any call: a block takes the segments of its head, or of its columns of a state, one after the other. Where
// so few blocks leave most of a GPU idle, a long causal call is done in pieces, of which only the walk is sequential:
//
//     solve      for each segment: the inverted system, for rules that correct
//     write      walks over the keys and leaves the state after each segment, and E
//     read       for each segment: outputs
//
// It computes the same numbers, but for the order in which a system is solved. Its price is the way of states and inverses
// through memory. A backward's states are written by the same walk.
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

// Of the delta rule's inverted systems (inverse.cuh), for calls that have them: those that a state has a part in do not.
inline bool has_inverses(const Call& call) {
  return corrects(call.rule) && !call.normalize_output && kind_of(call) == Kind::state;
}
inline int64_t floats_of_inverses(const Call& call) {
  return has_inverses(call) ? heads_of(call) * key_segments_of(call) * (1 + short_segment) * short_segment : 0;
}

// Sets what lies in the workspace; returns its floats.
inline int64_t place_pieces(Call& call, float* workspace) {
  Workspace room{workspace};
  const int64_t count = key_segments_of(call), tokens = corrects(call.rule) ? heads_of(call) * count * short_segment : 0;
  room.take(call.between_W, (count - 1) * floats_of_W(call));
  room.take(call.between_z, (count - 1) * floats_of_z(call));
  room.take(call.inverses, floats_of_inverses(call));
  room.take(call.missing, tokens * slices_of(call) * slice_columns);
  return room.used;
}
inline int64_t workspace_of(Call call) { return place_pieces(call, nullptr); }

// Whether a call is done in pieces: where with a block on a multiprocessor half of these would be idle, and where there are
// enough segments for two further launches to be paid for. The walk has a fifth of the products that are otherwise made one
// after the other, under rules that correct two fifths (csrc/cuda/README.md).
constexpr int fewest_pieces = 4;
inline bool is_in_pieces(const Call& call, int multiprocessors) {
  return call.causal && kind_of(call) == Kind::state && key_segments_of(call) >= fewest_pieces &&
         2 * heads_of(call) * slices_of(call) <= multiprocessors && (!corrects(call.rule) || has_inverses(call)) &&
         workspace_of(call) <= largest_workspace;
}

inline const char* forward_in_one(const Call& call, void* stream) {
  return with_instance(call, [&](auto operation, auto kind) {
    using O = decltype(operation);
    return launch_forward<typename O::Precision, O::rule, decltype(kind)::kind>(call, stream);
  });
}
// Calls f(operation) for a call with the instances of states.
template <class F> const char* with_state_instance(const Call& call, F f) {
  return with_instance(call, [&](auto operation, auto kind) -> const char* {
    if constexpr (decltype(kind)::kind == Kind::state) return f(operation);
    else return "no instance";
  });
}
// Walks over a call of keys alone; leaves states, and inverses and E where there is room for them.
inline const char* write_states(const Call& call, void* stream) {
  if (kind_of(call) != Kind::state || (corrects(call.rule) && !call.inverses)) return forward_in_one(call, stream);
  return with_state_instance(call, [&](auto operation) -> const char* {
    using O = decltype(operation);
    using P = typename O::Precision;
    if constexpr (corrects(O::rule))
      if (const char* error = launch_solve<P, O::rule, Kind::state>(call, stream)) return error;
    return launch_write<P, O::rule, Kind::state>(call, stream);
  });
}
inline const char* forward_in_pieces(const Call& call, void* stream) {
  if (const char* error = write_states(writing_of(call), stream)) return error;
  return with_state_instance(call, [&](auto operation) {
    using O = decltype(operation);
    return launch_read<typename O::Precision, O::rule, Kind::state>(call, stream);
  });
}
inline const char* forward(const Call& call, void* stream) {
  return call.between_W ? forward_in_pieces(call, stream) : forward_in_one(call, stream);
}

}  // namespace fwp::gpu
