// What decides between instances of the kernels.
#pragma once

#include "call.h"

namespace fwp::gpu {

// Queries or keys that a block holds at a time. A call of up to longest_block of them is one segment if a block has the
// shared memory for it; any other is divided into segments of short_segment, which a block takes one after the other.
constexpr int longest_segment = 128, short_segment = 64;
// The backward of the gated delta rule keeps so much that with longest_segment tokens it would spill registers.
constexpr int longest_block(Rule rule, bool backward) {
  return backward && rule == Rule::gated_delta ? short_segment : longest_segment;
}
inline bool is_segmented(const Call& c) { return c.targets > c.segment || c.sources > c.segment; }

// Columns of values that a block of the forward holds of a state: d_value / slice_columns blocks share a head.
constexpr int slice_columns = 32;

constexpr int slab_rows = 128;  // base rows of features held at a time, see shared.cuh
// Sets base_rows and base_end. There are at most slab_rows base rows at a time, but maps with offsets need all, as do
// calls where all stand together. With offsets, rows go on at both ends as they wrap around, so that a rolled row is
// found without a test: for r_{i-j}, nu rows before the first; for r_{i+s} of the backward and the last 16 rows, rows
// after the last up to base_end.
inline void lay_features(Call& c, bool backward) {
  const auto round_up = [](int x) { return (x + 15) / 16 * 16; };
  if (c.nu) c.base_rows = round_up(c.d_dot / c.nu);
  else if (c.m) c.base_rows = 2 * (c.together || c.m < slab_rows / 2 ? round_up(c.m) : slab_rows / 2);
  else c.base_rows = c.d_dot < slab_rows ? round_up(c.d_dot) : slab_rows;
  const int needed = backward && c.nu ? c.d_key + round_up(c.d_key) + c.nu : 0;
  c.base_end = needed > c.base_rows ? needed : c.base_rows;
}
// What an instance can do. The more it can, the more registers it takes.
//     plain    one segment without a state, maps without a projection
//     favor    the same, maps with a projection
//     state    states, and so several segments, maps without a projection
//     general  everything, also features in several slabs and states for which shared memory has no room
enum class Kind { plain, favor, state, general };
constexpr bool serves_states(Kind kind) { return kind == Kind::state || kind == Kind::general; }
template <Kind K> constexpr bool has_states = serves_states(K);
// Rules that decay have fewer instances, so as to have less to compile: where one is missing, `general` serves.
constexpr bool has_instance(Rule rule, Kind kind, bool single) {
  if (kind == Kind::favor) return !decays(rule) && !single;  // float operands never stand together, see fit
  return !decays(rule) || !single || serves_states(kind);
}
inline Kind kind_of(const Call& c) {
  const bool states = c.initial_W || c.W || c.grad_W || is_segmented(c);
  const bool general = c.m ? !c.together || states : (!c.nu && c.d_dot > slab_rows) || (states && !c.resident);
  const Kind kind = general ? Kind::general : states ? Kind::state : c.m ? Kind::favor : Kind::plain;
  return has_instance(c.rule, kind, c.type == Type::float32) ? kind : Kind::general;
}
// Whether there is a kernel for blocks of LT tokens.
constexpr bool exists(int LT, Rule rule, Kind kind, bool backward) {
  return serves_states(kind) ? LT == short_segment : LT <= longest_block(rule, backward);
}
// A forward with states has few blocks, so each has twice the warps: one team for the queries, one for the keys.
template <Kind K> constexpr int forward_teams = K == Kind::state ? 2 : 1;
// So has a short backward, whose shared memory lets few blocks live on a multiprocessor, as long as 128 registers a thread
// suffice. The gated delta rule's teams would add to the same sums.
constexpr int backward_teams_of(int LT, Rule rule, Kind kind) {
  const bool two = kind == Kind::plain && rule != Rule::gated_delta && LT <= (rule == Rule::sum ? 64 : 32);
  return two ? 2 : 1;
}
template <int LT, Rule RULE, Kind K> constexpr int backward_teams = backward_teams_of(LT, RULE, K);

}  // namespace fwp::gpu
