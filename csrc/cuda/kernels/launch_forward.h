// The launches of a forward, and the room that they need. No torch header, no CUDA.
//
// One launch serves any call: a block takes the segments of its head, or of its columns of a state, one after the other. Where
// so few blocks leave most of a GPU idle, a long causal call is done in pieces, of which only the walk is sequential:
//
//     keys       for each segment: features and scales of the keys, and for rules that correct the inverted system
//     write      walks over the keys and leaves the state after each segment, and E
//     read       for each segment: outputs
//
// It computes the same numbers, but for the order in which a system is solved. Its price is the way of states, features and
// inverses through memory. A backward's states are written by the same walk.
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

// Whether enough is known of a call's keys before any state is: not where the delta rule's system depends on the state.
inline bool has_keys(const Call& call) {
  return kind_of(call) == Kind::state && !(corrects(call.rule) && call.normalize_output);
}
// Of one side's features (noted.cuh) in so many segments; sets their number in one.
inline int64_t floats_of_features(Call& call, int64_t segments) {
  call.feature_vectors = (call.nu + call.base_rows) * short_segment * bytes_of_element(call.type) / 16;
  return heads_of(call) * segments * 4 * call.feature_vectors;
}
// What `keys` leaves. Features may have a place already.
inline void place_keys(Call& call, Workspace& room) {
  const int64_t segments = key_segments_of(call), tokens = heads_of(call) * segments * short_segment;
  if (!call.features_k) room.take(call.features_k, floats_of_features(call, segments));
  room.take(call.scales, tokens);
  room.take(call.inverses, corrects(call.rule) ? tokens * short_segment : 0);
}

// Sets what lies in the workspace; returns its floats.
inline int64_t place_pieces(Call& call, float* workspace) {
  Workspace room{workspace};
  const int64_t count = key_segments_of(call), tokens = corrects(call.rule) ? heads_of(call) * count * short_segment : 0;
  room.take(call.between_W, (count - 1) * floats_of_W(call));
  room.take(call.between_z, (count - 1) * floats_of_z(call));
  place_keys(call, room);
  room.take(call.missing, tokens * slices_of(call) * slice_columns);
  return room.used;
}
inline int64_t workspace_of(Call call) { return place_pieces(call, nullptr); }

// Whether a call is done in pieces: where with a block on a multiprocessor half of these would be idle, and where there are
// enough segments for two further launches to be paid for. The walk has a fifth of the products that are otherwise made one
// after the other, under rules that correct two fifths (csrc/cuda/README.md).
constexpr int fewest_pieces = 4;
inline bool is_in_pieces(const Call& call, int multiprocessors) {
  return call.causal && key_segments_of(call) >= fewest_pieces &&
         2 * heads_of(call) * slices_of(call) <= multiprocessors && has_keys(call) &&
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
// Walks over a call of keys alone; leaves states, and what `keys` leaves and E where there is room for them.
inline const char* write_states(const Call& call, void* stream) {
  if (!call.scales) return forward_in_one(call, stream);
  return with_state_instance(call, [&](auto operation) -> const char* {
    using O = decltype(operation);
    using P = typename O::Precision;
    if (const char* error = launch_keys<P, O::rule, Kind::state>(call, stream)) return error;
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
