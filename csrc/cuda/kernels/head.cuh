// What one block holds of a (batch row, head): features of a piece of at most LT queries and keys in shared memory.
//
// A warp owns the queries and the keys row .. row + 15.
//
// Features lie in shared memory as *base* rows, feature-major: base[feature][token], so that one layout gives operands
// along features (transposed loads) and along tokens (plain loads), and a rolled row is just another row. For DPFP the
// base is r = relu([x, -x]) and phi_{j,i} = r_i r_{i-j} is multiplied when the operand is loaded; for the other maps the
// base is phi itself, in slabs of at most 128 rows that are staged one after the other. Base rows are scaled by a power
// of two per token (`unit`: true base = unit x base), so that fp16 holds them whatever the inputs' size; `scale` is what
// turns the stored phi into the feature that the rule sees, 0 for padding and behind the end.
#pragma once

#include <initializer_list>
#include <type_traits>

#include "layout.cuh"
#include "maps.cuh"
#include "operands.cuh"
#include "state.cuh"

namespace fwp::gpu {

constexpr int inputs_at_once = 64;  // of a token
constexpr int value_block = 64;  // columns of values worked on at a time; slice_columns by forwards with a state

FWP_BOTH int value_blocks(const Call& c) { return (c.d_value + value_block - 1) / value_block; }

// Rows of values in shared memory are this many floats apart: 4 modulo 32, so that the operands' loads meet no bank twice.
template <int COLUMNS> FWP_BOTH int value_stride(const Call& c, bool backward) {
  return (backward ? value_blocks(c) * value_block : COLUMNS) + 4;
}

template <class P, int LT, Kind K, int COLUMNS = value_block, int TEAMS = 1> struct Shared {
  static constexpr int ld = LT + P::padding, raw_ld = inputs_at_once + P::padding;  // of base rows; of inputs
  typename P::Element *queries, *keys;        // [-nu .. base_end][ld]
  float *D, *Z, *G;                           // [LT][value_stride]; Z, G: backward only. D: see lay
  float* square;                              // [LT / 16][16][17]: diagonal blocks
  float *unit_q, *unit_k, *scale_q, *scale_k;  // [LT] each, as all that follow
  float *beta, *read_rate, *written;          // see forward.cuh
  float *gradient_den, *gradient_seen, *shift_q, *shift_k;  // backward only
  int* last_key;                              // [LT / 16]
  int* present;                               // [LT]: keys that are not padding
  typename P::Element* raw;                   // [TEAMS][LT][raw_ld]: inputs on their way to base rows. See lay

  // Cuts up the memory at `base`; bytes used. What is never needed together shares a place: inputs on their way and the
  // diagonal blocks, if features are staged but once; and in a forward without a state features and D.
  FWP_BOTH int lay(char* base, const Call& c, bool backward) {
    int used = 0, end = 0;
    const auto take = [&](auto*& pointer, int count) {
      pointer = reinterpret_cast<std::remove_reference_t<decltype(pointer)>>(base + used);
      used = round_up(used + count * int(sizeof *pointer), 16);
    };
    // What has the same size in every call comes first: its addresses are constants and take no registers.
    take(square, LT / 16 * 16 * 17);
    if (K != Kind::general) end = used, used = 0;
    take(raw, TEAMS * LT * raw_ld);
    if (end > used) used = end;
    for (float** each : {&unit_q, &unit_k, &scale_q, &scale_k, &beta, &read_rate, &written}) take(*each, LT);
    take(last_key, LT / 16);
    take(present, LT);
    if (backward)
      for (float** each : {&gradient_den, &gradient_seen, &shift_q, &shift_k}) take(*each, LT);
    const int features = used;
    for (typename P::Element** each : {&queries, &keys}) {
      take(*each, (c.nu + c.base_end) * ld);
      *each += c.nu * ld;
    }
    end = used;
    if (!has_states<K> && !backward) used = features;
    for (float** each : {&D, &Z, &G})
      if (backward || each == &D) take(*each, LT * value_stride<COLUMNS>(c, backward));
    return end > used ? end : used;
  }
};

// TEAMS: 1, where each warp has 16 queries and the keys of these numbers; or 2, of which one has queries, the other keys.
template <class P, int LT, Kind K, int COLUMNS = value_block, int TEAMS = 1> struct Head {
  static constexpr bool states = has_states<K>, several = K == Kind::general;  // slabs, maps
  static constexpr int tiles = LT / 16, strip_tiles = LT / 8, value_tiles = COLUMNS / 8;
  static constexpr int ld = Shared<P, LT, K>::ld, raw_ld = Shared<P, LT, K>::raw_ld;
  using Element = typename P::Element;
  using Pair = typename P::Pair;
  using Strip = float[strip_tiles][4];
  using Values = float[value_tiles][4];

  const Call& c;
  const Piece here;
  const bool backward;
  Shared<P, LT, K, COLUMNS, TEAMS> s;
  const int lane, g, t, team, row, b, h;
  int stride;        // of D, Z, G
  int base_rows;     // resident
  int modulus;       // base rows come round after so many: with offsets 2 d_key, else never
  const int a_down, b_down, a_across, b_across;  // corners of operands in base rows
  int slabs, staged = -1;
  int sources;       // keys here up to the last that is not padding
  int source_tiles, target_tiles;

  FWP_DEVICE Head(const Call& call, const Piece& piece, bool backward) : Head(call, piece, backward, Again{}) {
    Inputs q, k;
    if (!several) {
      ask(q, TEAMS > 1 && team, 0);
      if (TEAMS == 1) ask(k, true, 0);
    }
    find_last_key();
    target_tiles = (here.queries + 15) / 16;
    source_tiles = (sources + 15) / 16;
    if (!several) stage(q, k, 0, true);
    sync_block();
  }
  // The same block and piece again: for functions that are called. Handing them a pointer to this would keep it in memory.
  struct Again {};
  FWP_DEVICE Head(const Call& call, const Piece& piece, bool backward, Again)
      : c(call),
        here(piece),
        backward(backward),
        lane(thread_index() % 32),
        g(lane / 4),
        t(lane % 4),
        team(TEAMS == 1 ? 0 : warp_index() / tiles),
        row(16 * tile_of(warp_index(), backward)),
        b(piece.head / call.heads),
        h(piece.head % call.heads),
        a_down(corner<A_down>()),
        b_down(corner<B_down>()),
        a_across(corner<A_across>()),
        b_across(corner<B_across>()) {
    s.lay(shared_memory(s.lay(nullptr, c, backward)), c, backward);
    stride = value_stride<COLUMNS>(c, backward);
    base_rows = c.base_rows;
    modulus = c.nu ? 2 * c.d_key : 1 << 30;
    slabs = several ? slabs_of(c) : 1;
  }

  // Larger blocks have no registers to spare for it.
  template <class O> FWP_DEVICE int corner() const {
    const int at = P::template corner<O>(lane, ld);
    return LT < longest_chunk ? kept(at) : at;
  }

  // ---- small pieces ----

  FWP_DEVICE bool is_favor() const { return K == Kind::favor || (several && c.m); }
  // Calls f with the map, one of those that the instance serves.
  struct Served {
    template <Map M> static constexpr bool has = several || Phi<M>::projects == (K == Kind::favor);
  };
  template <class F> FWP_DEVICE decltype(auto) with_phi(F f) const { return with_map<Served>(c.map, f); }
  // .. and makes base rows of one input each.
  struct OfInputs {
    template <Map M> static constexpr bool has = !Phi<M>::projects;
  };
  template <class F> FWP_DEVICE decltype(auto) with_own(F f) const { return with_map<OfInputs>(c.map, f); }
  // .. and features, too.
  struct Elementwise {
    template <Map M> static constexpr bool has = !Phi<M>::projects && !Phi<M>::rolls;
  };
  template <class F> FWP_DEVICE decltype(auto) with_elementwise(F f) const { return with_map<Elementwise>(c.map, f); }

  FWP_DEVICE float quad_sum(float x) const {
    x += shuffle_xor(x, 1);
    return x + shuffle_xor(x, 2);
  }
  template <int N> static FWP_DEVICE void clear(float (&x)[N][4]) {
#pragma unroll
    for (int n = 0; n < N; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) x[n][i] = 0;
  }
  // Calls f(n, i, column) for every number of a strip; of the tiles of 16 columns first .. last - 1.
  template <class F> FWP_DEVICE void for_strip(F f) const { for_strip(0, tiles, f); }
  template <class F> FWP_DEVICE void for_strip(int first, int last, F f) const {
#pragma unroll
    for (int m = 0; m < tiles; ++m)
      if (m >= first && m < last)
#pragma unroll
        for (int n = 2 * m; n < 2 * m + 2; ++n)
#pragma unroll
          for (int i = 0; i < 4; ++i) f(n, i, 8 * n + 2 * t + (i & 1));
  }
  FWP_DEVICE int row_of(int i) const { return row + g + 8 * (i >> 1); }  // of element i of any accumulator

  // Which 16 tokens a warp has. In a causal forward the later ones have more to do, and warps 4 apart share a scheduler: of
  // eight warps these get tiles that together have the same.
  static FWP_DEVICE int tile_of(int warp, bool backward) {
    if (TEAMS > 1) return warp % tiles;
    return tiles == 8 && !backward && warp >= 4 ? 11 - warp : warp;
  }

  // ---- tokens ----

  FWP_DEVICE bool query_there(int i) const { return i < here.queries; }
  FWP_DEVICE bool key_there(int i) const { return s.present[i] != 0; }
  template <class V> FWP_DEVICE int64_t offset(const Rows<V>& rows, int i) const {
    return b * rows.batch + (here.first + i) * rows.time + h * rows.head;
  }

  // sources, beta (1 for the sum rule, 0 for padding and behind the end)
  FWP_DEVICE void find_last_key() {
    const int i = thread_index();
    const bool there =
        i < here.keys && !(c.padding.data && c.padding.data[b * c.padding.batch + (here.first + i) * c.padding.time]);
    float last = there ? float(i + 1) : 0.f;
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
      const float other = shuffle_xor(last, d);
      last = other > last ? other : last;
    }
    if (i < LT && lane == 0) s.last_key[i / 32] = int(last);
    if (i < LT) {
      s.beta[i] = !there ? 0.f : c.beta.data ? c.beta.data[offset(c.beta, i)] : 1.f;
      s.present[i] = there;
    }
    sync_block();
    sources = 0;
#pragma unroll 1
    for (int w = 0; w < (LT + 31) / 32; ++w) sources = s.last_key[w] > sources ? s.last_key[w] : sources;
  }

  // ---- features ----

  // Inputs on their way: inputs_at_once ones of own tokens, a vector a lane and step, neighbouring lanes along a token.
  static constexpr int vector = 16 / sizeof(Element), lanes_a_token = inputs_at_once / vector,
                       tokens_a_step = 32 / lanes_a_token;
  using Inputs = Vector[16 / tokens_a_step];

  // Asks for own tokens' inputs from `first` on, if they can be loaded as vectors.
  FWP_DEVICE void ask(Inputs& x, bool keys, int first) const {
    const Rows<const void>& rows = keys ? c.k : c.q;
    if (!rows.aligned) return;
    const int token = row + lane / lanes_a_token, d = first + lane % lanes_a_token * vector;
    const int end = d < c.d_key ? keys ? here.keys : here.queries : 0;
    const Element* from = static_cast<const Element*>(rows.data) + offset(rows, token) + d;
#pragma unroll
    for (int n = 0; n < 16 / tokens_a_step; ++n) {
      if (token + n * tokens_a_step < end) x[n] = *reinterpret_cast<const Vector*>(from + n * tokens_a_step * rows.time);
      else x[n] = {};
    }
  }
  // Inputs first .. first + 63 of own tokens to `raw`, 0 where there are none.
  FWP_DEVICE void put_inputs(const Inputs& asked, bool keys, int first) const {
    const Rows<const void>& rows = keys ? c.k : c.q;
    Element* raw = s.raw + (team * LT + row) * raw_ld;
    if (rows.aligned) {
#pragma unroll
      for (int n = 0; n < 16 / tokens_a_step; ++n) {
        const int token = n * tokens_a_step + lane / lanes_a_token;
        Vector y = asked[n];
        if (keys && !key_there(row + token)) y = {};
        *reinterpret_cast<Vector*>(raw + token * raw_ld + lane % lanes_a_token * vector) = y;
      }
    } else {
#pragma unroll 1
      for (int e = lane; e < 16 * inputs_at_once; e += 32) {
        const int token = row + e / inputs_at_once, d = first + e % inputs_at_once;
        const bool there = d < c.d_key && (keys ? key_there(token) : query_there(token));
        raw[e / inputs_at_once * raw_ld + e % inputs_at_once] =
            there ? static_cast<const Element*>(rows.data)[offset(rows, token) + d] : Element(0);
      }
    }
    sync_warp();
  }
  // The same as numbers: x[n][..] are pairs of tokens, those of the operand A_down of 16 inputs.
  FWP_DEVICE void read_inputs(Float2 (&x)[inputs_at_once / 16][4], const Inputs& asked, bool keys, int first) const {
    put_inputs(asked, keys, first);
    const Element* at = s.raw + (team * LT + row) * raw_ld + P::template corner<A_down>(lane, raw_ld);
    Pair pairs[inputs_at_once / 16][4];
#pragma unroll
    for (int n = 0; n < inputs_at_once / 16; ++n) P::template load<A_down, raw_ld>(pairs[n], at + 16 * n);
    P::for_type(c.type, [&](auto type) {
#pragma unroll
      for (int n = 0; n < inputs_at_once / 16; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) x[n][i] = P::template numbers<type.value>(pairs[n][i]);
    });
    sync_warp();
  }

  // Base rows of slab `slab` of own tokens; `asked`: for the first inputs of the slab, or if `fresh` for the first of all,
  // since then the tokens' units are found, too.
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
#pragma unroll
    for (int h = 0; h < 2; ++h)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        top[h][e] = -INFINITY;
        const int token = 8 * h + 2 * t + e;
        if (!P::scaled && g == 0) unit[token] = 1;
        by[h][e] = looks ? 0 : !P::scaled ? 1.f : one_over_power(unit[token]);
      }
#pragma unroll 1
    for (int n = 0; n < looks + writes - both; ++n) {
      const int d = (n < looks ? n : n - looks) * inputs_at_once;  // of all inputs, or of the slab's
      Float2 x[inputs_at_once / 16][4];
      if (n) ask(asked, keys, n < looks ? d : first + d);
      read_inputs(x, asked, keys, n < looks ? d : first + d);
      const auto each = [&](auto f) {  // f(pair, tokens 2t or 2t + 8, input)
#pragma unroll
        for (int m = 0; m < inputs_at_once / 16; ++m)
#pragma unroll
          for (int i = 0; i < 4; ++i) f(x[m][i], i >> 1, d + 16 * m + 8 * (i & 1) + g);
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
#pragma unroll
        for (int h = 0; h < 2; ++h)
#pragma unroll
          for (int e = 0; e < 2; ++e) {
#pragma unroll
            for (int lanes = 4; lanes < 32; lanes *= 2) top[h][e] = larger(top[h][e], shuffle_xor(top[h][e], lanes));
            const float power =
                power_below(with_own([&](auto map) { return Phi<map.value>::of_largest(top[h][e]); }));
            if (g == 0) unit[8 * h + 2 * t + e] = power;
            by[h][e] = one_over_power(power);
          }
      }
      if (n >= looks || both) {
        const auto scaled = [&](Float2 y, int h) { return P::pair(y.x * by[h][0], y.y * by[h][1]); };
        with_own([&](auto map) {
          if constexpr (!Phi<map.value>::zero) {
            const auto there = [&](int token) { return keys ? key_there(row + token) : query_there(row + token); };
#pragma unroll
            for (int h = 0; h < 2; ++h)
#pragma unroll
              for (int e = 0; e < 2; ++e)
                if (!there(8 * h + 2 * t + e)) by[h][e] = 0;
          }
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
    // What goes on at the ends, and nothing behind the last feature: eight lanes a row.
    const int end = all ? c.base_end : base_rows;
    Element* pair = to + lane % 8 * 2;
    for (int n = lane / 8 - c.nu; n < 0; n += 4) store(pair + n * ld, load(pair + (n + modulus) * ld));
    for (int n = (all ? modulus : count) + lane / 8; n < end; n += 4) {
      int from = n;
      while (from >= modulus) from -= modulus;
      store(pair + n * ld, all ? load(pair + from * ld) : P::pair(0, 0));
    }
  }
  static FWP_DEVICE void store(Element* to, Pair x) { *reinterpret_cast<Pair*>(to) = x; }
  static FWP_DEVICE Pair load(const Element* from) { return *reinterpret_cast<const Pair*>(from); }

  // Of two teams each stages its own side, asked for in `q`.
  FWP_DEVICE void stage(Inputs& q, Inputs& k, int slab, bool fresh) const {
    if (is_favor()) return stage_favor(q, k, slab, fresh);
#pragma unroll 1
    for (int side = TEAMS == 1 ? 0 : team;; ++side) {
      stage_side(q, side, slab, fresh);
      if (TEAMS > 1 || side) return;
#pragma unroll
      for (int n = 0; n < 16 / tokens_a_step; ++n) q[n] = k[n];
    }
  }
  FWP_DEVICE void stage(int slab, bool fresh) const {
    Inputs q, k;
    const int first = c.nu || is_favor() || (P::scaled && fresh) ? 0 : slab * base_rows;
    ask(q, false, first);
    ask(k, true, first);
    stage(q, k, slab, fresh);
  }

  // ---- FAVOR+ ----
  //
  // Feature i of the slab stands in base rows i and half + i: exp(R x' - |x'|^2 / 2) and exp(-R x' - |x'|^2 / 2), over the
  // largest of all features of the token. Until that is known R x' stands there itself, in float: a pair of tokens in the
  // room of its pairs of features, which the same lane reads, so that R is gone through once. Exponents of half operands
  // are of 2: others would feel that constants are rounded.
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
  // Calls f(side, h, r, base row) for what a lane has of 16 features of both sides: pairs of tokens from 8 h on.
  template <class F> FWP_DEVICE void for_kept(int i, F f) const {
#pragma unroll
    for (int side = 0; side < 2; ++side)
#pragma unroll
      for (int h = 0; h < 2; ++h)
#pragma unroll
        for (int r = 0; r < 2; ++r)
          f(side, h, r, (side ? s.keys : s.queries) + row + (i + g + 8 * r) * ld + 8 * h + 2 * t);
  }

  // R x' of the slab to its base rows; of |x'|^2 / 2 the tokens' `norm`, and in `top` the largest |R x'| so far. `q` and `k`
  // have been asked for if `asked`.
  FWP_DEVICE void project(Inputs& q, Inputs& k, bool asked, int slab, OfTokens& norm, OfTokens& top) const {
    const int half = base_rows / 2, last = c.m - 1;
    const float scale = c.input_scale;
    float squares[2][2] = {};
#pragma unroll 1
    for (int d = 0; d < c.d_key; d += inputs_at_once) {
      if (d || !asked) {
        ask(q, false, d);
        ask(k, true, d);
      }
      const bool in_pairs = c.d_key % 2 == 0 && reinterpret_cast<std::uintptr_t>(c.projection) % 8 == 0;
      const bool whole = in_pairs && d + inputs_at_once <= c.d_key;
      Pair x[2][inputs_at_once / 16][4];
      OfTokens by;  // what R x is multiplied by: x is near 1
#pragma unroll
      for (int side = 0; side < 2; ++side) {
        put_inputs(side ? k : q, side, d);
        const Element* at = s.raw + (team * LT + row) * raw_ld + P::template corner<B_across>(lane, raw_ld);
#pragma unroll
        for (int n = 0; n < inputs_at_once / 16; ++n) P::template load<B_across, raw_ld>(x[side][n], at + 16 * n);
        sync_warp();
        float power[2] = {1, 1};
        P::for_type(c.type, [&](auto type) {
          const auto each = [&](auto f) {  // f(pair, tokens g or g + 8)
#pragma unroll
            for (int n = 0; n < inputs_at_once / 16; ++n)
#pragma unroll
              for (int i = 0; i < 4; ++i) f(x[side][n][i], i >> 1);
          };
          each([&](Pair& pair, int r) {
            const Float2 y = P::template numbers<type.value>(pair);
            squares[side][r] += y.x * y.x + y.y * y.y;
            power[r] = larger(power[r], larger(absolute(y.x), absolute(y.y)));
          });
          if (P::scaled) {
#pragma unroll
            for (int r = 0; r < 2; ++r) {
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
#pragma unroll
        for (int h = 0; h < 2; ++h)
#pragma unroll
          for (int e = 0; e < 2; ++e)
            by[side][h][e] = scale * exponent_units * (P::scaled ? shuffle(power[h], 8 * t + 4 * e) : 1.f);
      }
#pragma unroll 1
      for (int i = 0; i < half; i += 16) {
        const float* rows[2];  // of R; behind its last row that again
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const int number = slab * half + i + g + 8 * r;
          rows[r] = c.projection + (number < last ? number : last) * c.d_key + d + 2 * t;
        }
        Float2 R[inputs_at_once / 16][4];
        const auto load_R = [&](auto f) {
#pragma unroll
          for (int n = 0; n < inputs_at_once / 16; ++n)
#pragma unroll
            for (int e = 0; e < 4; ++e) R[n][e] = f(rows[e & 1], 16 * n + 8 * (e >> 1));
        };
        if (whole) load_R([](const float* from, int at) { return Single::load_pair(Type::float32, from, at); });
        else
          load_R([&](const float* from, int at) {
            const int left = c.d_key - d - 2 * t - at;
            return Float2{left > 0 ? from[at] : 0.f, left > 1 ? from[at + 1] : 0.f};
          });
        float p[2][2][4] = {};
#pragma unroll
        for (int n = 0; n < inputs_at_once / 16; ++n) {
          if (d + 16 * n >= c.d_key) continue;
          typename P::Exact a;
          P::split(a, R[n]);
#pragma unroll
          for (int side = 0; side < 2; ++side)
#pragma unroll
            for (int h = 0; h < 2; ++h) P::mma_exact(p[side][h], a, x[side][n][2 * h], x[side][n][2 * h + 1]);
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
#pragma unroll
    for (int side = 0; side < 2; ++side)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float half_square = 0.5f * exponent_units * (scale * (scale * quad_sum(squares[side][h])));
        half_square = half_square > 1e30f ? 1e30f : half_square;  // what follows is finite then
#pragma unroll
        for (int e = 0; e < 2; ++e) norm[side][h][e] = shuffle(half_square, 8 * t + 4 * e);
      }
  }
  // Features of the slab, of both sides; if `fresh` their largest exponents first, to `unit`.
  FWP_DEVICE void stage_favor(Inputs& q, Inputs& k, int slab, bool fresh) const {
    constexpr float highest = largest_favor_exponent * exponent_units;
    const int half = base_rows / 2, m = c.m;
    OfTokens norm, top = {};
    bool asked = true;
    if (several && fresh)
#pragma unroll 1
      for (int other = slabs - 1; other > slab; --other) {
        project(q, k, asked, other, norm, top);
        asked = false;
      }
    project(q, k, asked, slab, norm, top);
    // From here on `top` is what is taken from R x': no difference of large numbers, but where exponents are clipped. NaN
    // is not larger than anything, and stays.
#pragma unroll
    for (int side = 0; side < 2; ++side) {
      float* unit = (side ? s.unit_k : s.unit_q) + row;
#pragma unroll
      for (int h = 0; h < 2; ++h)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float& x = top[side][h][e];
          float& own = unit[8 * h + 2 * t + e];
          if (fresh) {
#pragma unroll
            for (int lanes = 4; lanes < 32; lanes *= 2) x = larger(x, shuffle_xor(x, lanes));
            const float exponent = x - norm[side][h][e];
            const bool clipped = exponent >= highest;
            if (g == 0) own = clipped ? largest_favor_exponent : exponent / exponent_units;
            if (clipped) x = norm[side][h][e] + highest;
          } else {
            x = norm[side][h][e] + (own < largest_favor_exponent ? own * exponent_units : highest);
          }
        }
    }
#pragma unroll 1
    for (int i = 0; i < half; i += 16)
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

  static FWP_CALLED void restage(const Call& c, int head, int first, int queries, int keys, bool backward, int slab,
                                 bool fresh) {
    sync_block();
    Head(c, {head, first, queries, keys, {}, {}, {}, {}}, backward, Again{}).stage(slab, fresh);
    sync_block();
  }
  // Calls f(slab) with each slab in shared memory, at all threads.
  template <class F> FWP_DEVICE void for_slabs(F f) {
    if constexpr (several) {
#pragma unroll 1
      for (int slab = 0; slab < slabs; ++slab) {
        if (staged != slab) {
          restage(c, here.head, here.first, here.queries, here.keys, backward, slab, staged < 0);
          staged = slab;
        }
        f(slab);
      }
    } else {
      f(0);
    }
  }
  // Calls f(rolled, j, i) for every 16 rows of features of the slab, from base row i on; j: the offset, 0 for maps without
  // offsets, which are not rolled.
  template <class F> FWP_DEVICE void for_features(F f) const {
    if (K != Kind::favor && c.nu) {
#pragma unroll 1
      for (int j = 1; j <= c.nu; ++j)
#pragma unroll 1
        for (int i = 0; i < base_rows; i += 16) f(std::true_type{}, j, i);
    } else {
#pragma unroll 1
      for (int i = 0; i < base_rows; i += 16) f(std::false_type{}, 0, i);
    }
  }
  // 16 rows of features of the slab, by number: the offset and the first base row.
  struct Tile16 {
    int j, i;
  };
  FWP_DEVICE int feature_tiles() const { return (c.nu ? c.nu : 1) * (base_rows / 16); }
  FWP_DEVICE Tile16 feature_tile(int number) const {
    const int each = base_rows / 16;
    return {c.nu ? 1 + number / each : 0, number % each * 16};
  }
  FWP_DEVICE int feature_number(int slab, int j, int i) const { return gpu::feature_number(c, base_rows, slab, j, i); }
  FWP_DEVICE int state_row(int slab, int j, int i) const { return (c.nu ? j - 1 : slab) * base_rows + i; }

  // ---- the next piece ----

  // Asks for the inputs of `next`, and for the columns of values from `column` on.
  FWP_DEVICE static void fetch(const Call& c, const Piece& next, int column) {
    const int size = sizeof(typename P::Element), i = thread_index() % LT, line = 128;
    const auto ask = [&](const auto& rows, int first, int width) {
      const char* at = static_cast<const char*>(rows.data) +
                       size * (next.head / c.heads * rows.batch + (next.first + i) * rows.time +
                               next.head % c.heads * rows.head + first);
      for (int d = 0; d < size * width; d += line) prefetch(at + d);
    };
    if (thread_index() < LT) {
      if (i < next.queries) ask(c.q, 0, c.d_key);
    } else if (thread_index() < 2 * LT && i < next.keys) {
      ask(c.k, 0, c.d_key);
      ask(c.v, column, c.d_value - column < COLUMNS ? c.d_value - column : COLUMNS);
    }
  }
};

}  // namespace fwp::gpu
