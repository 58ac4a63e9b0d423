// Computes features and stores them in shared memory.
#pragma once

#include "maps/favor_staging.cuh"

namespace fwp::gpu {

template <class P, int LT, Kind K, int COLUMNS = value_block, int TEAMS = 1>
struct Staging : FavorStaging<P, LT, K, COLUMNS, TEAMS> {
  using Base = FavorStaging<P, LT, K, COLUMNS, TEAMS>;
  using Base::Base;
  using Base::ask, Base::base_rows, Base::c, Base::g, Base::is_favor, Base::key_there, Base::lane, Base::ld,
      Base::load, Base::modulus, Base::query_there, Base::read_inputs, Base::row, Base::s, Base::stage_favor,
      Base::store, Base::t, Base::team, Base::tokens_a_step, Base::with_own;
  using typename Base::Element, typename Base::Inputs, typename Base::Pair;

  // Sets the tokens' units from the largest inputs that the lanes have seen, and `by` to their inverses.
  FWP_DEVICE void find_units(float* unit, float (&top)[2][2], float (&by)[2][2]) const {
    FWP_UNROLL for (int h = 0; h < 2; ++h)
      FWP_UNROLL for (int e = 0; e < 2; ++e) {
        FWP_UNROLL for (int lanes = 4; lanes < 32; lanes *= 2) top[h][e] = larger(top[h][e], shuffle_xor(top[h][e], lanes));
        const float power =
            power_below(with_own([&](auto map) { return Phi<map.value>::of_largest(top[h][e]); }));
        if (g == 0) unit[8 * h + 2 * t + e] = power;
        by[h][e] = one_over_power(power);
      }
  }
  // Sets the factor of missing tokens to 0 under maps where an input 0 would have features.
  FWP_DEVICE void drop_missing(bool keys, float (&by)[2][2]) const {
    if (with_own([](auto map) { return Phi<map.value>::zero; })) return;
    const auto there = [&](int token) { return keys ? key_there(row + token) : query_there(row + token); };
    FWP_UNROLL for (int h = 0; h < 2; ++h)
      FWP_UNROLL for (int e = 0; e < 2; ++e)
        if (!there(8 * h + 2 * t + e)) by[h][e] = 0;
  }
  // Continues `count` base rows at both ends, with 0 behind the last feature. Eight lanes serve a row.
  FWP_DEVICE void extend(Element* to, int count) const {
    const bool all = c.nu;
    const int end = all ? c.base_end : base_rows;
    Element* pair = to + lane % 8 * 2;
    for (int n = lane / 8 - c.nu; n < 0; n += 4) store(pair + n * ld, load(pair + (n + modulus) * ld));
    for (int n = (all ? modulus : count) + lane / 8; n < end; n += 4) {
      int from = n;
      while (from >= modulus) from -= modulus;
      store(pair + n * ld, all ? load(pair + from * ld) : P::pair(0, 0));
    }
  }
  // Stores the base rows of slab `slab` of own tokens. `asked` holds the slab's first inputs, or if `fresh`, when the
  // tokens' units are found too, the first inputs of all.
  FWP_DEVICE void stage_side(Inputs& asked, bool keys, int slab, bool fresh) const {
    const bool all = c.nu;
    const bool rises = with_own([](auto map) { return Phi<map.value>::rises; });
    const int first = all ? 0 : slab * base_rows, rest = c.d_key - first,
              count = all || rest < base_rows ? rest : base_rows;
    const int looks = P::scaled && fresh ? (c.d_key + inputs_at_once - 1) / inputs_at_once : 0;
    const int writes = (count + inputs_at_once - 1) / inputs_at_once, both = looks == 1 ? 1 : 0;
    Element* to = (keys ? s.keys : s.queries) + row;
    float* unit = (keys ? s.unit_k : s.unit_q) + row;
    float top[2][2], by[2][2];  // of the tokens 2t, 2t + 1 and 8 further
    FWP_UNROLL for (int h = 0; h < 2; ++h)
      FWP_UNROLL for (int e = 0; e < 2; ++e) {
        top[h][e] = -INFINITY;
        const int token = 8 * h + 2 * t + e;
        if (!P::scaled && g == 0) unit[token] = 1;
        by[h][e] = looks ? 0 : !P::scaled ? 1.f : one_over_power(unit[token]);
      }
    FWP_ROLLED for (int n = 0; n < looks + writes - both; ++n) {
      const int d = (n < looks ? n : n - looks) * inputs_at_once;  // first among all inputs, then among the slab's
      Float2 x[inputs_at_once / 16][4];
      if (n) ask(asked, keys, n < looks ? d : first + d);
      read_inputs(x, asked, keys, n < looks ? d : first + d);
      const auto each = [&](auto f) {  // f(pair, tokens 2t or 2t + 8, input)
        FWP_UNROLL for (int m = 0; m < inputs_at_once / 16; ++m)
          FWP_UNROLL for (int i = 0; i < 4; ++i) f(x[m][i], i >> 1, d + 16 * m + 8 * (i & 1) + g);
      };
      if (n < looks) {
        const auto look = [&](Float2 y, int h) {
          top[h][0] = larger(top[h][0], y.x);
          top[h][1] = larger(top[h][1], y.y);
        };
        if (rises)
          each([&](Float2 y, int h, int i) { look(i < c.d_key ? y : Float2{-INFINITY, -INFINITY}, h); });
        else each([&](Float2 y, int h, int) { look({absolute(y.x), absolute(y.y)}, h); });
      }
      if (n + 1 == looks) {
        find_units(unit, top, by);
      }
      if (n >= looks || both) {
        const auto scaled = [&](Float2 y, int h) { return P::pair(y.x * by[h][0], y.y * by[h][1]); };
        drop_missing(keys, by);
        with_own([&](auto map) {
          each([&](Float2 y, int h, int i) {
            Phi<map.value>::template base<P>(
                y, [&](Float2 y) { return scaled(y, h); },
                [&](Pair pair, int further) {
                  if (i < count) store(to + (i + further) * ld + 8 * h + 2 * t, pair);
                },
                c.d_key);
          });
        });
      }
    }
    sync_warp();
    extend(to, count);
  }
  // With two teams each stages its own side, whose inputs were asked for in `q`.
  FWP_DEVICE void stage(Inputs& q, Inputs& k, int slab, bool fresh) const {
    if (is_favor()) return stage_favor(q, k, slab, fresh);
    FWP_ROLLED for (int side = TEAMS == 1 ? 0 : team;; ++side) {
      stage_side(q, side, slab, fresh);
      if (TEAMS > 1 || side) return;
      FWP_UNROLL for (int n = 0; n < 16 / tokens_a_step; ++n) q[n] = k[n];
    }
  }
  FWP_DEVICE void stage(int slab, bool fresh) const {
    Inputs q, k;
    const int first = c.nu || is_favor() || (P::scaled && fresh) ? 0 : slab * base_rows;
    ask(q, false, first);
    ask(k, true, first);
    stage(q, k, slab, fresh);
  }
};

}  // namespace fwp::gpu
