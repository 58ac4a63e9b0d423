// Calls that are longer than what a block holds are walked: the block takes the tokens of its head a piece at a time and
// carries the state from one to the next. The backward takes the pieces in reverse order and carries the state's gradient.
//
//   causal      piece n: queries and keys n LT .. n LT + LT - 1
//   otherwise   such pieces of keys, which leave a state, then pieces of queries, which read it; one of both if all fit
//
// States for the backward: a launch of the forward leaves that after the last piece of every group of `checkpoints`
// pieces of keys; the others of a group, all in the same room, are made again when its turn comes.
#pragma once

#include "call.h"
#include "device.cuh"

namespace fwp::gpu {

template <class Number> struct State {  // of all heads, as in call.h
  Number *W, *z;
};
struct Piece {
  int head;   // of all batch rows
  int first;  // query and key
  int queries, keys;
  State<const float> before;          // initial state, null: zeros
  State<float> after;                 // forward: final state, null: not wanted; may be `before`
  State<const float> gradient_after;  // backward: gradient of the final state, null: zeros
  State<float> gradient_before;       // of the initial state, null: not wanted; may be `gradient_after`
};

// All of a call that fits into a block.
FWP_DEVICE Piece whole(const Call& c, int head) {
  return {head, 0, c.targets, c.sources, {c.initial_W, c.initial_z}, {c.W, c.z}, {c.grad_W, c.grad_z},
          {c.grad_initial_W, c.grad_initial_z}};
}

FWP_BOTH int pieces_of(int tokens, int LT) { return (tokens + LT - 1) / LT; }
FWP_BOTH int pieces_of_keys(const Call& c, int LT) { return c.sources ? pieces_of(c.sources, LT) : 1; }
FWP_BOTH int pieces(const Call& c, int LT) {
  const bool together = c.causal || (c.targets <= LT && c.sources <= LT);
  return pieces_of_keys(c, LT) + (together ? 0 : pieces_of(c.targets, LT));
}
FWP_DEVICE int clamp(int x, int most) { return x < 0 ? 0 : x > most ? most : x; }

// Where the state after piece i of keys stands.
FWP_DEVICE State<float> left_by(const Call& c, int LT, int i) {
  int place = 0;
  if (c.checkpoints) {
    const int group = i / c.checkpoints, number = i % c.checkpoints;
    place = number == c.checkpoints - 1 ? group : pieces_of(pieces_of_keys(c, LT), c.checkpoints) + number;
  }
  const int64_t rows = int64_t(place) * c.batch * c.heads * c.d_dot;
  return {c.W ? c.W + rows * c.d_value : nullptr, c.z ? c.z + rows : nullptr};
}

// Whether it must stand there: the final state, or for the backward the last of each group and the last group.
FWP_DEVICE bool leaves(const Call& c, int LT, int i) {
  const int last = pieces_of_keys(c, LT) - 1;
  if (!c.W || i > last) return false;
  if (!c.checkpoints) return i == last;
  return i % c.checkpoints == c.checkpoints - 1 || i / c.checkpoints == last / c.checkpoints;
}

FWP_DEVICE Piece piece(const Call& c, int LT, int head, int n) {
  const int writing = pieces_of_keys(c, LT), all = pieces(c, LT);
  const bool writes = n < writing, reads = !writes || writing == all;
  Piece p{};
  p.head = head;
  p.first = (writes ? n : n - writing) * LT;
  p.queries = reads ? clamp(c.targets - p.first, LT) : 0;
  p.keys = writes ? clamp(c.sources - p.first, LT) : 0;
  const State<float> found = left_by(c, LT, n == 0 ? 0 : writes ? n - 1 : writing - 1);
  p.before = n ? State<const float>{found.W, found.z} : State<const float>{c.initial_W, c.initial_z};
  if (writes) p.after = left_by(c, LT, n);
  const bool last = n == all - 1, wanted = n || c.initial_W;
  p.gradient_after = last ? State<const float>{c.grad_W, c.grad_z} : State<const float>{c.grad_initial_W, c.grad_initial_z};
  if (wanted) p.gradient_before = {c.grad_initial_W, c.grad_initial_z};
  return p;
}
FWP_DEVICE Piece keys_of(Piece p) {
  p.queries = 0;
  return p;
}

}  // namespace fwp::gpu
