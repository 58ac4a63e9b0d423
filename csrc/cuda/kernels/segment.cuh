// A call that is longer than what a block holds is divided into segments (other backends call the same thing a chunk). A
// block of the forward takes the segments of its head one after the other and carries the state from each to the next.
//
//   causal      segment n: queries and keys n LT .. n LT + LT - 1
//   otherwise   such segments of keys, which leave a state, then segments of queries, which read it; if everything fits into
//               one segment, this has both
//
// The backward needs the state before each segment (pieces.h). A forward over the keys stores the one after the last
// segment of every group of `checkpoints` segments, and those of the last group. The other states of a group are
// computed again when its turn comes; all groups use the same memory for them.
//
// A forward in pieces (launch_forward.h) keeps the states after all segments.
#pragma once

#include "call.h"
#include "device.cuh"

namespace fwp::gpu {

template <class Number> struct State {  // of all heads, as in call.h
  Number *W, *z;
};
// A key as a thread knows it: whether it is there, neither padding nor behind the end; its strength, 1 under the sum rule.
struct Key {
  bool there;
  float beta;
};
enum class Sides { none, queries, keys, both };
struct Segment {
  int head;   // of all batch rows
  int first;  // query and key
  int queries, keys;
  State<const float> before;          // initial state, null: zeros
  State<float> after;                 // forward: final state, null: not wanted; may be `before`
  State<const float> gradient_after;  // backward: gradient of the final state, null: zeros
  State<float> gradient_before;       // of the initial state, null: not wanted
  Sides taken = Sides::none;          // whose features are in memory; of others none are needed then
  Key key = {};                       // the thread's, where features are taken (noted.cuh)
};
FWP_DEVICE bool takes(const Segment& p, bool keys) {
  return (keys ? p.keys : p.queries) > 0 && (p.taken == Sides::both || p.taken == (keys ? Sides::keys : Sides::queries));
}

// A whole call, one that fits into a block.
FWP_DEVICE Segment whole(const Call& c, int head) {
  return {head, 0, c.targets, c.sources, {c.initial_W, c.initial_z}, {c.W, c.z}, {c.grad_W, c.grad_z},
          {c.grad_initial_W, c.grad_initial_z}};
}

FWP_BOTH int segments_of(int tokens, int LT) { return (tokens + LT - 1) / LT; }
FWP_BOTH int key_segments(const Call& c, int LT) { return c.sources ? segments_of(c.sources, LT) : 1; }
FWP_BOTH int segments(const Call& c, int LT) {
  const bool together = c.causal || (c.targets <= LT && c.sources <= LT);
  return key_segments(c, LT) + (together ? 0 : segments_of(c.targets, LT));
}
FWP_DEVICE int clamp(int x, int most) { return x < 0 ? 0 : x > most ? most : x; }

// The place of the state after segment i of keys.
FWP_DEVICE State<float> left_by(const Call& c, int LT, int i) {
  const int64_t each = int64_t(c.batch) * c.heads * c.d_dot;
  if (c.between_W && i + 1 < key_segments(c, LT))
    return {c.between_W + i * each * c.d_value, c.between_z ? c.between_z + i * each : nullptr};
  int place = 0;
  if (c.checkpoints) {
    const int group = i / c.checkpoints, number = i % c.checkpoints;
    place = number == c.checkpoints - 1 ? group : segments_of(key_segments(c, LT), c.checkpoints) + number;
  }
  const int64_t rows = place * each;
  return {c.W ? c.W + rows * c.d_value : nullptr, c.z ? c.z + rows : nullptr};
}

// Whether that state is kept: the final one; in pieces all; for the backward also each group's last and all of the last group.
FWP_DEVICE bool leaves(const Call& c, int LT, int i) {
  const int last = key_segments(c, LT) - 1;
  if (c.between_W && i < last) return true;
  if (!c.W || i > last) return false;
  if (!c.checkpoints) return i == last;
  return i % c.checkpoints == c.checkpoints - 1 || i / c.checkpoints == last / c.checkpoints;
}

FWP_DEVICE Segment segment(const Call& c, int LT, int head, int n) {
  const int writing = key_segments(c, LT), all = segments(c, LT);
  const bool writes = n < writing, reads = !writes || writing == all;
  Segment p{};
  p.head = head;
  p.first = (writes ? n : n - writing) * LT;
  p.queries = reads ? clamp(c.targets - p.first, LT) : 0;
  p.keys = writes ? clamp(c.sources - p.first, LT) : 0;
  const State<float> found = left_by(c, LT, n == 0 ? 0 : writes ? n - 1 : writing - 1);
  p.before = n ? State<const float>{found.W, found.z} : State<const float>{c.initial_W, c.initial_z};
  if (writes) p.after = left_by(c, LT, n);
  return p;
}

}  // namespace fwp::gpu
