// Computes the features of FAVOR+ and stores them in shared memory.
//
// Feature i of the slab stands in base rows i and half + i: exp(R x' - |x'|^2 / 2) and exp(-R x' - |x'|^2 / 2), over the
// largest of all features of the token. Until that is known, R x' itself stands there in float, a pair of tokens in the
// room of its pairs of features, and is read by the same lane, so that R is read only once. Half operands use powers of
// 2: with another base the rounding of constants would show.
#pragma once

#include "../own_tokens.cuh"

namespace fwp::gpu {

template <class P, int LT, Kind K, int COLUMNS = value_block, int TEAMS = 1>
struct FavorStaging : OwnTokens<P, LT, K, COLUMNS, TEAMS> {
  using Base = OwnTokens<P, LT, K, COLUMNS, TEAMS>;
  using Base::Base;
  using Base::ask, Base::base_rows, Base::c, Base::g, Base::lane, Base::ld, Base::load, Base::put_inputs,
      Base::quad_sum, Base::raw_ld, Base::row, Base::s, Base::several, Base::slabs, Base::store, Base::t,
      Base::team;
  using typename Base::Element, typename Base::Inputs, typename Base::Pair;

  static constexpr float exponent_units = P::scaled ? 1.44269504f : 1.f;

  // Of the sides q and k, tokens 2t, 2t + 1 and 8 further.
  using OfTokens = float[2][2][2];

  FWP_DEVICE void keep(Element* to, Float2 x) const {
    if constexpr (sizeof(Pair) == sizeof(Float2)) {
      store(to, P::pair(x.x, x.y));
    } else {
      *reinterpret_cast<float*>(to) = x.x;
      *reinterpret_cast<float*>(to + base_rows / 2 * ld) = x.y;
    }
  }
  FWP_DEVICE Float2 kept_at(const Element* from) const {
    if constexpr (sizeof(Pair) == sizeof(Float2)) return P::values(load(from));
    else return {*reinterpret_cast<const float*>(from), *reinterpret_cast<const float*>(from + base_rows / 2 * ld)};
  }
  // Calls f(side, h, r, base row) for a lane's part of 16 features of both sides: pairs of tokens from 8 h on.
  template <class F> FWP_DEVICE void for_kept(int i, F f) const {
    FWP_UNROLL for (int side = 0; side < 2; ++side)
      FWP_UNROLL for (int h = 0; h < 2; ++h)
        FWP_UNROLL for (int r = 0; r < 2; ++r)
          f(side, h, r, (side ? s.keys : s.queries) + row + (i + g + 8 * r) * ld + 8 * h + 2 * t);
  }

  // Inputs d .. of own tokens g and g + 8 as operands over `power` of two, so that they are near 1; adds to their squares.
  using Factor = Pair[inputs_at_once / 16][4];
  FWP_DEVICE void load_inputs(Factor& x, const Inputs& asked, bool is_key, int d, float (&squares)[2],
                              float (&power)[2]) const {
    put_inputs(asked, is_key, d);
    const Element* at = s.raw + (team * LT + row) * raw_ld + P::template corner<B_across>(lane, raw_ld);
    FWP_UNROLL for (int n = 0; n < inputs_at_once / 16; ++n) P::template load<B_across, raw_ld>(x[n], at + 16 * n);
    sync_warp();
    P::for_type(c.type, [&](auto type) {
      const auto each = [&](auto f) {  // f(pair, tokens g or g + 8)
        FWP_UNROLL for (int n = 0; n < inputs_at_once / 16; ++n)
          FWP_UNROLL for (int i = 0; i < 4; ++i) f(x[n][i], i >> 1);
      };
      each([&](Pair& pair, int r) {
        const Float2 y = P::template numbers<type.value>(pair);
        squares[r] += y.x * y.x + y.y * y.y;
        power[r] = larger(power[r], larger(absolute(y.x), absolute(y.y)));
      });
      if (P::scaled) {
        FWP_UNROLL for (int r = 0; r < 2; ++r) {
          for (int lanes = 1; lanes < 4; lanes *= 2) power[r] = larger(power[r], shuffle_xor(power[r], lanes));
          power[r] = power_below(power[r]);
        }
        each([&](Pair& pair, int r) {
          const Float2 y = P::template numbers<type.value>(pair);
          const float down = one_over_power(power[r]);
          pair = P::pair(y.x * down, y.y * down);
        });
      }
    });
  }
  // 16 rows of R from `first` on (behind its last row that again), inputs d .. ; `whole`: in aligned pairs, all there.
  FWP_DEVICE void load_projection(Float2 (&R)[inputs_at_once / 16][4], int first, int d, bool whole) const {
    const float* rows[2];
    FWP_UNROLL for (int r = 0; r < 2; ++r) {
      const int number = first + g + 8 * r;
      rows[r] = c.projection + (number < c.m ? number : c.m - 1) * c.d_key + d + 2 * t;
    }
    const auto load_R = [&](auto f) {
      FWP_UNROLL for (int n = 0; n < inputs_at_once / 16; ++n)
        FWP_UNROLL for (int e = 0; e < 4; ++e) R[n][e] = f(rows[e & 1], 16 * n + 8 * (e >> 1));
    };
    if (whole) load_R([](const float* from, int at) { return Single::load_pair(Type::float32, from, at); });
    else
      load_R([&](const float* from, int at) {
        const int left = c.d_key - d - 2 * t - at;
        return Float2{left > 0 ? from[at] : 0.f, left > 1 ? from[at + 1] : 0.f};
      });
  }
  // Stores R x' of the slab in its base rows, |x'|^2 / 2 of the tokens in `norm` and the largest |R x'| so far in
  // `top`. If `asked`, loads into `q` and `k` have been started.
  FWP_DEVICE void project(Inputs& q, Inputs& k, bool asked, int slab, OfTokens& norm, OfTokens& top) const {
    const int half = base_rows / 2;
    const float scale = c.input_scale;
    float squares[2][2] = {};
    FWP_ROLLED for (int d = 0; d < c.d_key; d += inputs_at_once) {
      if (d || !asked) {
        ask(q, false, d);
        ask(k, true, d);
      }
      const bool in_pairs = c.d_key % 2 == 0 && reinterpret_cast<std::uintptr_t>(c.projection) % 8 == 0;
      const bool whole = in_pairs && d + inputs_at_once <= c.d_key;
      Factor x[2];
      OfTokens by;  // what R x is multiplied by: x is near 1
      FWP_UNROLL for (int side = 0; side < 2; ++side) {
        float power[2] = {1, 1};
        load_inputs(x[side], side ? k : q, side, d, squares[side], power);
        FWP_UNROLL for (int h = 0; h < 2; ++h)
          FWP_UNROLL for (int e = 0; e < 2; ++e)
            by[side][h][e] = scale * exponent_units * (P::scaled ? shuffle(power[h], 8 * t + 4 * e) : 1.f);
      }
      FWP_ROLLED for (int i = 0; i < half; i += 16) {
        Float2 R[inputs_at_once / 16][4];
        load_projection(R, slab * half + i, d, whole);
        float p[2][2][4] = {};
        FWP_UNROLL for (int n = 0; n < inputs_at_once / 16; ++n) {
          if (d + 16 * n >= c.d_key) continue;
          typename P::Exact a;
          P::split(a, R[n]);
          FWP_UNROLL for (int side = 0; side < 2; ++side)
            FWP_UNROLL for (int h = 0; h < 2; ++h) P::mma_exact(p[side][h], a, x[side][n][2 * h], x[side][n][2 * h + 1]);
        }
        for_kept(i, [&](int side, int h, int r, Element* at) {
          Float2 y = {p[side][h][2 * r] * by[side][h][0], p[side][h][2 * r + 1] * by[side][h][1]};
          if (d) {
            const Float2 before = kept_at(at);
            y = {before.x + y.x, before.y + y.y};
          }
          keep(at, y);
          if (d + inputs_at_once < c.d_key) return;
          top[side][h][0] = larger(top[side][h][0], absolute(y.x));
          top[side][h][1] = larger(top[side][h][1], absolute(y.y));
        });
      }
    }
    FWP_UNROLL for (int side = 0; side < 2; ++side)
      FWP_UNROLL for (int h = 0; h < 2; ++h) {
        float half_square = 0.5f * exponent_units * (scale * (scale * quad_sum(squares[side][h])));
        half_square = half_square > 1e30f ? 1e30f : half_square;  // what follows is finite then
        FWP_UNROLL for (int e = 0; e < 2; ++e) norm[side][h][e] = shuffle(half_square, 8 * t + 4 * e);
      }
  }
  // Stores the slab's features of both sides; if `fresh`, first sets `unit` to their largest exponents.
  FWP_DEVICE void stage_favor(Inputs& q, Inputs& k, int slab, bool fresh) const {
    constexpr float highest = largest_exponent * exponent_units;
    const int half = base_rows / 2, m = c.m;
    OfTokens norm, top = {};
    bool asked = true;
    if (several && fresh)
      FWP_ROLLED for (int other = slabs - 1; other > slab; --other) {
        project(q, k, asked, other, norm, top);
        asked = false;
      }
    project(q, k, asked, slab, norm, top);
    // From here on `top` is what is taken from R x': no difference of large numbers, but where exponents are clipped. NaN
    // is not larger than anything, and stays.
    FWP_UNROLL for (int side = 0; side < 2; ++side) {
      float* unit = (side ? s.unit_k : s.unit_q) + row;
      FWP_UNROLL for (int h = 0; h < 2; ++h)
        FWP_UNROLL for (int e = 0; e < 2; ++e) {
          float& x = top[side][h][e];
          float& own = unit[8 * h + 2 * t + e];
          if (fresh) {
            FWP_UNROLL for (int lanes = 4; lanes < 32; lanes *= 2) x = larger(x, shuffle_xor(x, lanes));
            const float exponent = x - norm[side][h][e];
            const bool clipped = exponent >= highest;
            if (g == 0) own = clipped ? largest_exponent : exponent / exponent_units;
            if (clipped) x = norm[side][h][e] + highest;
          } else {
            x = norm[side][h][e] + (own < largest_exponent ? own * exponent_units : highest);
          }
        }
    }
    FWP_ROLLED for (int i = 0; i < half; i += 16)
      for_kept(i, [&](int side, int h, int r, Element* at) {
        const bool there = slab * half + i + g + 8 * r < m;
        const Float2 y = kept_at(at);
        const auto feature = [&](float x, int e) {
          const float less = x - top[side][h][e], exponent = less > 0 ? 0.f : less;
          return !there ? 0.f : P::scaled ? power_of_two(exponent) : exponential(exponent);
        };
        store(at, P::pair(feature(y.x, 0), feature(y.y, 1)));
        store(at + half * ld, P::pair(feature(-y.x, 0), feature(-y.y, 1)));
      });
    sync_warp();
  }
};

}  // namespace fwp::gpu
