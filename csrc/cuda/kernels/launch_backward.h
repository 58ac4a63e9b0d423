// The launches of a backward (pieces.h), and the room that they need.
#pragma once

#include <algorithm>
#include <initializer_list>

#include "directions.h"
#include "launch_forward.h"

namespace fwp::gpu {

// ---- what a call of several segments consists of ----

inline Pieces walk_of(Pieces call) {
  call.resident = call.resident_walk;
  lay_features(call, false);
  return call;
}

inline void fit(Pieces& call, int limit) {
  fit(call, true, limit);
  if (!is_segmented(call)) return;
  call.resident = bytes(writing_of(call), false) <= limit;
  call.resident_walk = 1;
  call.resident_walk = walk_bytes(walk_of(call)) <= limit;
}
// The kernels for a piece have no state of their own in shared memory.
inline Pieces piecewise(Pieces call) {
  call.resident = 1;
  return call;
}
// The most shared memory that a launch needs.
inline int most_bytes(const Call& call) { return bytes(call, false); }
inline int most_bytes(const Pieces& call) {
  const int own = bytes(piecewise(call), true);
  if (!is_segmented(call)) return own;
  return std::max({own, bytes(writing_of(call), false), walk_bytes(walk_of(call))});
}

// ---- room ----

// Groups follow one another, those of keys first. A causal call has no others.
inline int groups_of(const Call& call, int segments) { return (segments + call.checkpoints - 1) / call.checkpoints; }
inline int key_groups(const Call& call) { return groups_of(call, key_segments_of(call)); }
inline int query_groups(const Call& call) { return call.causal ? 0 : groups_of(call, segments_of(call, call.targets)); }

inline void set_notes(Pieces& call) {
  call.note_columns = slices_of(call) * slice_columns;
  call.note_blocks = !corrects(call.rule) ? 1 : call.normalize_output ? 3 : 2;
}
inline int64_t floats_of_notes(const Pieces& call) {
  return heads_of(call) * short_segment * (call.note_blocks * call.note_columns + 4);
}

// The features that a walk takes, if it takes any.
inline void place_features(Pieces& call, Workspace& room, int64_t segments) {
  if (kind_of(walk_of(call)) != Kind::state) return;
  room.take(call.features_q, floats_of_features(call, segments));
  if (corrects(call.rule)) room.take(call.features_k, floats_of_features(call, segments));
}

// Sets `checkpoints`, the number of segments in a group: at least the square root of their number, where groups and the
// segments of a group need least room together, and then as many as the largest workspace permits. It holds what the pieces
// leave for each other, so many of them that they fill any GPU.
inline void group(Pieces& call) {
  set_notes(call);
  const int count = std::max(key_segments_of(call), call.causal ? 0 : segments_of(call, call.targets));
  int root = 1;
  while (root * root < count) ++root;
  Pieces one = call;
  Workspace features{};
  place_features(one, features, 1);
  const int64_t each =
      2 * floats_of_W(call) + (1 + slices_of(call)) * floats_of_z(call) + floats_of_notes(call) + features.used;
  const int64_t most = std::max<int64_t>(root, each ? largest_workspace / each : count);
  const int groups = int((count + most - 1) / most);
  call.checkpoints = (count + groups - 1) / groups;
}

// Where everything is in the workspace. Takes a copy of the call whose pointers it sets.
struct Room {
  Pieces call;
  Workspace room;
  float *carried_W[2], *carried_z[2];  // the gradients of the states between groups, in turn

  explicit Room(const Pieces& whole) : call(whole), room{whole.workspace} {
    set_notes(call);
    const int groups = key_groups(call), every = call.checkpoints;
    const int64_t states = groups + every - 1, W = floats_of_W(call), z = floats_of_z(call);
    room.take(call.W, states * W);
    room.take(call.z, states * z);
    room.take(call.gradients_W, (every - 1) * W);
    room.take(call.gradients_z, every * slices_of(call) * z);
    room.take(call.notes, every * floats_of_notes(call));
    for (int i : {0, 1}) {
      const bool needed = groups + query_groups(call) > 1;
      room.take(carried_W[i], needed * W);
      room.take(carried_z[i], needed * z);
    }
    place_features(call, room, every);
    if (groups > 1 || !has_keys(call)) return;
    const Pieces without = call;
    const Workspace before = room;
    place_keys(call, room);
    if (room.used > largest_workspace) call = without, room = before;
  }
  // The state after segment i of keys, as left_by of segment.cuh has it.
  float* W_after(int i) const { return call.W + place(i) * floats_of_W(call); }
  float* z_after(int i) const { return call.z ? call.z + place(i) * floats_of_z(call) : nullptr; }

 private:
  int64_t place(int i) const {
    const int number = i % call.checkpoints;
    return number == call.checkpoints - 1 ? i / call.checkpoints : key_groups(call) + number;
  }
};
// Floats of the workspace of a call of several segments.
inline int64_t workspace_of(const Pieces& call) { return Room(call).room.used; }

// ---- launches ----

inline void take_queries(Pieces& call, int first, int most) {
  for_rows_of_queries(call, [&](auto& rows, int size) { advance(rows, first * rows.time, size); });
  call.targets = std::max(0, std::min(call.targets - first, most));
}
inline void take_keys(Pieces& call, int first, int most) {
  for_rows_of_keys(call, [&](auto& rows, int size) { advance(rows, first * rows.time, size); });
  call.sources = std::max(0, std::min(call.sources - first, most));
}

// Group number `number` as a call of its own.
inline Pieces group_of(const Room& room, const Pieces& whole, int number) {
  Pieces found = room.call;
  const int of_keys = key_groups(whole), last = of_keys + query_groups(whole) - 1, tokens = whole.checkpoints * whole.segment;
  if (number < of_keys) {
    const int first = number * tokens;
    take_keys(found, first, tokens);
    if (whole.causal) take_queries(found, first, tokens);
    else found.targets = 0;
    if (number) {
      found.initial_W = room.W_after(number * whole.checkpoints - 1);
      found.initial_z = room.z_after(number * whole.checkpoints - 1);
    }
    if (found.W) found.W = room.call.W + of_keys * floats_of_W(whole);
    if (found.z) found.z = room.call.z + of_keys * floats_of_z(whole);
  } else {
    take_queries(found, (number - of_keys) * tokens, tokens);
    found.sources = 0;
    found.initial_W = room.W_after(key_segments_of(whole) - 1);
    found.initial_z = room.z_after(key_segments_of(whole) - 1);
  }
  if (number < last) found.grad_W = room.carried_W[(number + 1) % 2], found.grad_z = room.carried_z[(number + 1) % 2];
  if (number) found.grad_initial_W = room.carried_W[number % 2], found.grad_initial_z = room.carried_z[number % 2];
  return found;
}

inline const char* pieces_backward(const Pieces& call, void* stream) {
  return with_instance(call, [&](auto operation, auto kind) {
    using O = decltype(operation);
    return launch_backward<typename O::Precision, O::rule, decltype(kind)::kind>(call, stream);
  });
}
// With the instances of states only.
inline const char* pieces_prepare(const Pieces& call, void* stream) {
  return with_instance(call, [&](auto operation, auto kind) -> const char* {
    using O = decltype(operation);
    if constexpr (serves_states(decltype(kind)::kind))
      return launch_preparation<typename O::Precision, O::rule, decltype(kind)::kind>(call, stream);
    else return "no instance";
  });
}
inline const char* pieces_walk(const Pieces& call, void* stream) {
  return with_instance(call, [&](auto operation, auto kind) -> const char* {
    using O = decltype(operation);
    if constexpr (serves_states(decltype(kind)::kind))
      return launch_walk<typename O::Precision, O::rule, decltype(kind)::kind>(call, stream);
    else return "no instance";
  });
}

inline const char* group_backward(const Pieces& given, void* stream) {
  const Pieces call = piecewise(given);
  if (is_segmented(call)) {
    // Keys alone tell a rule that does not correct nothing about the gradient of a state.
    if (call.targets || corrects(call.rule))
      if (const char* error = pieces_prepare(call, stream)) return error;
    if (const char* error = pieces_walk(walk_of(call), stream)) return error;
  }
  return pieces_backward(call, stream);
}

inline const char* backward(const Pieces& whole, void* stream) {
  if (!is_segmented(whole)) return pieces_backward(piecewise(whole), stream);
  const Room room(whole);
  if (const char* error = write_states(writing_of(room.call), stream)) return error;
  for (int last = key_groups(whole) - 1, number = last + query_groups(whole); number >= 0; --number) {
    Pieces group = group_of(room, whole, number);
    if (number < last && whole.checkpoints > 1) {  // the states of the last group are there
      Pieces before = group;
      take_keys(before, 0, (whole.checkpoints - 1) * whole.segment);
      before.W -= floats_of_W(whole);  // left_by puts the first state behind that of a group
      if (before.z) before.z -= floats_of_z(whole);
      if (const char* error = write_states(writing_of(before), stream)) return error;
    }
    if (const char* error = group_backward(group, stream)) return error;
  }
  return nullptr;
}

}  // namespace fwp::gpu
