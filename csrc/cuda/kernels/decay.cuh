// What rules that decay leave of earlier writes. A key t leaves the share keep_t of all that was written before it: 1 - beta_t
// under the gated rule, alpha_t under the gated delta rule, 1 for padding. Of what a key s wrote, before its beta, a later
// query t finds the share
//
//     D_ts = keep_{s+1} .. keep_t,  and of the state before the segment  keep_0 .. keep_t
//
// Such products are multiplied together as they stand. Quotients of running products, or differences of logarithms,
// would fail where a factor is 0 or negative and lose accuracy where it is small. So that few factors are multiplied
// often, D is split where tiles of 16 tokens begin: its blocks on the diagonal are made once (find_decay), and
//
//     D_ts = since(t) across(tiles between) tail(s)
//
// Where all queries read after the last key, t is the segment's end for each of them. Keys that read what the rule corrects
// read in order even then; `causal` says which of the two holds.
#pragma once

#include "head.cuh"

namespace fwp::gpu {

// The gated rule's blocks lie where the delta rule has its own. A rule that has both keeps those of D behind everything that
// Shared divides; in the backward what decay_gradient.cuh keeps follows them.
constexpr bool has_decay_room(Rule rule) { return corrects(rule) && decays(rule); }
template <int LT> constexpr int decay_floats = LT * 17;
template <int LT> constexpr int decay_gradient_floats = LT / 16 * (2 * (LT + 1) + 17 * 17) + 5 * LT + LT / 16;
template <int LT> FWP_BOTH constexpr int decay_bytes(Rule rule, bool backward) {
  return has_decay_room(rule) ? 4 * (decay_floats<LT> + (backward ? decay_gradient_floats<LT> : 0)) : 0;
}

template <class Under, int LT, Rule RULE> struct Decay : Under {
  using Base = Under;
  using Base::c, Base::row, Base::row_of, Base::s, Base::t, Base::tiles;
  static constexpr bool has_room = has_decay_room(RULE);

  float* const blocks;  // [LT / 16][16][17]: D's blocks on the diagonal; behind each row, if they have a room, since

  FWP_DEVICE Decay(const Call& call, const Segment& segment, bool backward)
      : Base(call, segment, backward), blocks(find_blocks(backward)) {}

  FWP_DEVICE float* find_blocks(bool backward) const {
    if constexpr (has_room) {
      const int used = std::remove_const_t<decltype(Base::s)>().lay(nullptr, c, backward);
      return reinterpret_cast<float*>(shared_memory(used + decay_bytes<LT>(RULE, backward)) + used);
    } else {
      return s.square;
    }
  }

  // What a key leaves of earlier writes.
  FWP_DEVICE float keep(int key) const {
    if constexpr (RULE == Rule::gated_delta) return Base::key_there(key) ? c.alpha.data[Base::offset(c.alpha, key)] : 1.f;
    else return 1 - s.beta[key];
  }
  // Stores D's blocks on the diagonal; thread `token` makes one column. Readers wait for a barrier.
  FWP_DEVICE void find_decay(int token) const {
    if (token < 0 || token >= LT) return;
    const int first = token / 16 * 16;
    float left = 1;
    FWP_ROLLED for (int i = first; i < first + 16; ++i) {
      if (i > token) left *= keep(i);
      blocks[i * 17 + token % 16] = i < token ? 0.f : left;
      if (has_room && token == first) blocks[i * 17 + 16] = keep(first) * left;
    }
  }

  // D of two tokens of one tile.
  FWP_DEVICE float near(int query, int key) const { return blocks[query * 17 + key % 16]; }
  // What a token leaves of what there was before its tile; what the end of a key's tile finds of that key.
  FWP_DEVICE float since(int token) const {
    return has_room ? blocks[token * 17 + 16] : keep(token / 16 * 16) * near(token, 0);
  }
  FWP_DEVICE float tail(int key) const { return near(key | 15, key); }
  // What the tiles first .. end - 1 leave.
  FWP_DEVICE float across(int first, int end) const {
    float left = 1;
    FWP_ROLLED for (int m = first; m < end; ++m) left *= since(16 * m + 15);
    return left;
  }
  // What the segment's end finds of a key; what a query finds of the state before the segment.
  FWP_DEVICE float at_end(int key) const { return tail(key) * across(key / 16 + 1, tiles); }
  FWP_DEVICE float left_of_state(int query, bool causal) const {
    return causal ? since(query) * across(0, query / 16) : across(0, tiles);
  }
  FWP_DEVICE float left_of_state(int query) const { return left_of_state(query, c.causal); }

  // Calls f(n, i, column, D) for the strip's tiles first .. last - 1. Rows are own queries and columns keys, or if KEYS,
  // rows are own keys and columns queries. D is 1 without decay; it means nothing where the query comes before the key.
  template <bool DECAYS, bool KEYS, class F> FWP_DEVICE void for_decay(int first, int last, F f) const {
    for_decay<DECAYS, KEYS>(c.causal, first, last, f);
  }
  template <bool DECAYS, bool KEYS, class F> FWP_DEVICE void for_decay(bool causal, int first, int last, F f) const {
    if constexpr (!DECAYS) {
      Base::for_strip(first, last, [&](int n, int i, int j) { f(n, i, j, 1.f); });
    } else {
      const int own = row / 16;
      FWP_UNROLL for (int m = 0; m < tiles; ++m) {
        if (m < first || m >= last) continue;
        const int key_tile = KEYS ? own : m, query_tile = KEYS ? m : own;
        const float between = across(key_tile + 1, causal ? query_tile : tiles);
        FWP_UNROLL for (int n = 2 * m; n < 2 * m + 2; ++n)
          FWP_UNROLL for (int i = 0; i < 4; ++i) {
            const int j = 8 * n + 2 * t + (i & 1), key = KEYS ? row_of(i) : j, query = KEYS ? j : row_of(i);
            const bool same = causal && m == own;
            f(n, i, j, same ? near(query, key) : between * tail(key) * (causal ? since(query) : 1.f));
          }
      }
    }
  }
  // Multiplies a strip of own keys times the keys of the tiles before `keys` by what the later of two keys finds of the
  // earlier one.
  template <class Strip> FWP_DEVICE void weigh_pairs(Strip& B, int keys) const {
    const int own = row / 16;
    for_decay<true, false>(true, 0, own < keys ? own + 1 : keys, [&](int n, int i, int j, float left) {
      if (j < row_of(i)) B[n][i] *= left;
    });
    for_decay<true, true>(true, own, keys, [&](int n, int i, int j, float left) {
      if (j > row_of(i)) B[n][i] *= left;
    });
  }
};

}  // namespace fwp::gpu
