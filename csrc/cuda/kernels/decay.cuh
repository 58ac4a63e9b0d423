// What the gated rule leaves of earlier writes: of what a key s wrote, before its beta, a later query t finds the share
//
//     D_ts = (1 - beta_{s+1}) .. (1 - beta_t),  and of the state before the segment  (1 - beta_0) .. (1 - beta_t)
//
// Such products are multiplied together as they stand. Quotients of running products, or differences of logarithms,
// would fail where a factor is 0 or negative and lose accuracy where it is small. So that few factors are multiplied
// often, D is split where tiles of 16 tokens begin: its blocks on the diagonal are made once (find_decay), and
//
//     D_ts = since(t) across(tiles between) tail(s)
//
// Where all queries read after the last key, t is the segment's end for each of them.
#pragma once

#include "head.cuh"

namespace fwp::gpu {

template <class P, int LT, Kind K, int COLUMNS = value_block, int TEAMS = 1>
struct Decay : Head<P, LT, K, COLUMNS, TEAMS> {
  using Base = Head<P, LT, K, COLUMNS, TEAMS>;
  using Base::Base;
  using Base::c, Base::row, Base::row_of, Base::s, Base::t, Base::tiles;

  // Stores D's blocks on the diagonal in s.square; thread `token` makes one column. Readers wait for a barrier.
  FWP_DEVICE void find_decay(int token) const {
    if (token < 0 || token >= LT) return;
    const int first = token / 16 * 16;
    float left = 1;
    FWP_ROLLED for (int i = first; i < first + 16; ++i) {
      if (i > token) left *= 1 - s.beta[i];
      s.square[i * 17 + token % 16] = i < token ? 0.f : left;
    }
  }

  // D of two tokens of one tile.
  FWP_DEVICE float near(int query, int key) const { return s.square[query * 17 + key % 16]; }
  // What a token leaves of what there was before its tile; what the end of a key's tile finds of that key.
  FWP_DEVICE float since(int token) const { return (1 - s.beta[token / 16 * 16]) * near(token, 0); }
  FWP_DEVICE float tail(int key) const { return near(key | 15, key); }
  // What the tiles first .. end - 1 leave.
  FWP_DEVICE float across(int first, int end) const {
    float left = 1;
    FWP_ROLLED for (int m = first; m < end; ++m) left *= since(16 * m + 15);
    return left;
  }
  // What the segment's end finds of a key; what a query finds of the state before the segment.
  FWP_DEVICE float at_end(int key) const { return tail(key) * across(key / 16 + 1, tiles); }
  FWP_DEVICE float left_of_state(int query) const {
    return c.causal ? since(query) * across(0, query / 16) : across(0, tiles);
  }

  // Calls f(n, i, column, D) for the strip's tiles first .. last - 1. Rows are own queries and columns keys, or if KEYS,
  // rows are own keys and columns queries. D is 1 without decay; it means nothing where the query comes before the key.
  template <bool DECAYS, bool KEYS, class F> FWP_DEVICE void for_decay(int first, int last, F f) const {
    if constexpr (!DECAYS) {
      Base::for_strip(first, last, [&](int n, int i, int j) { f(n, i, j, 1.f); });
    } else {
      const int own = row / 16;
      FWP_UNROLL for (int m = 0; m < tiles; ++m) {
        if (m < first || m >= last) continue;
        const int key_tile = KEYS ? own : m, query_tile = KEYS ? m : own;
        const float between = across(key_tile + 1, c.causal ? query_tile : tiles);
        FWP_UNROLL for (int n = 2 * m; n < 2 * m + 2; ++n)
          FWP_UNROLL for (int i = 0; i < 4; ++i) {
            const int j = 8 * n + 2 * t + (i & 1), key = KEYS ? row_of(i) : j, query = KEYS ? j : row_of(i);
            const bool same = c.causal && m == own;
            f(n, i, j, same ? near(query, key) : between * tail(key) * (c.causal ? since(query) : 1.f));
          }
      }
    }
  }
};

}  // namespace fwp::gpu
