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

template <class P, int LT, int COLUMNS = value_block, int TEAMS = 1> struct Shared {
  static constexpr int ld = LT + P::padding, raw_ld = inputs_at_once + P::padding;  // of base rows; of inputs
  typename P::Element *queries, *keys;        // [-rows_before .. rows_end][ld]
  float *D, *Z, *G;                           // [LT][value_stride]; Z, G: backward only
  float* square;                              // [LT / 16][16][17]: diagonal blocks
  float *unit_q, *unit_k, *scale_q, *scale_k;  // [LT] each, as all that follow
  float *beta, *read_rate, *written;          // see forward.cuh
  float *gradient_den, *gradient_seen, *shift_q, *shift_k;  // backward only
  int* last_key;                              // [LT / 16]
  int* present;                               // [LT]: keys that are not padding
  typename P::Element* raw;                   // [TEAMS][LT][raw_ld]: inputs on their way to base rows

  // Cuts up the memory at `base`; bytes used.
  FWP_BOTH int lay(char* base, const Call& c, bool backward) {
    int used = 0;
    const auto take = [&](auto*& pointer, int count) {
      pointer = reinterpret_cast<std::remove_reference_t<decltype(pointer)>>(base + used);
      used = round_up(used + count * int(sizeof *pointer), 16);
    };
    // What has the same size in every call comes first: its addresses are constants and take no registers.
    take(square, LT / 16 * 16 * 17);
    for (float** each : {&unit_q, &unit_k, &scale_q, &scale_k, &beta, &read_rate, &written}) take(*each, LT);
    take(last_key, LT / 16);
    take(present, LT);
    take(raw, TEAMS * LT * raw_ld);
    if (backward)
      for (float** each : {&gradient_den, &gradient_seen, &shift_q, &shift_k}) take(*each, LT);
    for (typename P::Element** each : {&queries, &keys}) {
      take(*each, (rows_before(c) + rows_end(c, backward)) * ld);
      *each += rows_before(c) * ld;
    }
    for (float** each : {&D, &Z, &G})
      if (backward || each == &D) take(*each, LT * value_stride<COLUMNS>(c, backward));
    return used;
  }
};

// TEAMS: 1, where each warp has 16 queries and the keys of these numbers; or 2, of which one has queries, the other keys.
template <class P, int LT, Kind K, int COLUMNS = value_block, int TEAMS = 1> struct Head {
  static constexpr bool states = K != Kind::plain, several = K == Kind::general;  // slabs, maps
  static constexpr int tiles = LT / 16, strip_tiles = LT / 8, value_tiles = COLUMNS / 8;
  static constexpr int ld = Shared<P, LT>::ld, raw_ld = Shared<P, LT>::raw_ld;
  using Element = typename P::Element;
  using Pair = typename P::Pair;
  using Strip = float[strip_tiles][4];
  using Values = float[value_tiles][4];
  using Projected = float[slab_rows / 16][4];

  const Call& c;
  const Piece here;
  const bool backward;
  Shared<P, LT, COLUMNS, TEAMS> s;
  const int lane, g, t, team, row, b, h;
  int stride;        // of D, Z, G
  int base_rows;     // resident
  int modulus;       // base rows come round after so many: DPFP: 2 d_key, the other maps: never
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
    base_rows = resident_rows(c);
    modulus = c.map == Map::dpfp ? 2 * c.d_key : 1 << 30;
    slabs = several ? slabs_of(c) : 1;
  }

  // Larger blocks have no registers to spare for it.
  template <class O> FWP_DEVICE int corner() const {
    const int at = P::template corner<O>(lane, ld);
    return LT < longest_chunk ? kept(at) : at;
  }

  // ---- small pieces ----

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
  // Inputs first .. first + 63 of own tokens, 0 where there are none: x[n][..] are pairs of tokens, those of the operand
  // A_down of 16 inputs.
  FWP_DEVICE void read_inputs(Float2 (&x)[inputs_at_once / 16][4], const Inputs& asked, bool keys, int first) const {
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
    const Element* at = raw + P::template corner<A_down>(lane, raw_ld);
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
    const bool dpfp = c.map == Map::dpfp;
    const int first = dpfp ? 0 : slab * base_rows, rest = c.d_key - first,
              count = dpfp || rest < base_rows ? rest : base_rows;
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
        if (c.map == Map::elu)
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
            const float power = power_below(c.map == Map::elu ? elu(top[h][e]) : top[h][e]);
            if (g == 0) unit[8 * h + 2 * t + e] = power;
            by[h][e] = one_over_power(power);
          }
      }
      if (n >= looks || both) {
        const auto scaled = [&](Float2 y, int h) { return P::pair(y.x * by[h][0], y.y * by[h][1]); };
        const auto write = [&](Pair y, int h, int i) {
          if (i < count) store(to + i * ld + 8 * h + 2 * t, y);
        };
        if (dpfp) {
          each([&](Float2 y, int h, int i) {
            const Pair z = scaled(y, h);
            write(P::relu(z), h, i);
            if (i < count) store(to + (i + c.d_key) * ld + 8 * h + 2 * t, P::relu(P::negative(z)));
          });
        } else if (c.map == Map::elu) {
          const auto there = [&](int token) { return keys ? key_there(row + token) : query_there(row + token); };
#pragma unroll
          for (int h = 0; h < 2; ++h)
#pragma unroll
            for (int e = 0; e < 2; ++e)
              if (!there(8 * h + 2 * t + e)) by[h][e] = 0;
          each([&](Float2 y, int h, int i) { write(scaled({elu(y.x), elu(y.y)}, h), h, i); });
        } else {
          each([&](Float2 y, int h, int i) { write(scaled(y, h), h, i); });
        }
      }
    }
    sync_warp();
    // What goes on at the ends, and nothing behind the last feature: eight lanes a row.
    const int end = dpfp ? rows_end(c, backward) : base_rows;
    Element* pair = to + lane % 8 * 2;
    for (int n = -rows_before(c) + lane / 8; n < 0; n += 4) store(pair + n * ld, load(pair + (n + modulus) * ld));
    for (int n = (dpfp ? modulus : count) + lane / 8; n < end; n += 4) {
      int from = n;
      while (from >= modulus) from -= modulus;
      store(pair + n * ld, dpfp ? load(pair + from * ld) : P::pair(0, 0));
    }
  }
  static FWP_DEVICE void store(Element* to, Pair x) { *reinterpret_cast<Pair*>(to) = x; }
  static FWP_DEVICE Pair load(const Element* from) { return *reinterpret_cast<const Pair*>(from); }

  // Of two teams each stages its own side, asked for in `q`.
  FWP_DEVICE void stage(Inputs& q, Inputs& k, int slab, bool fresh) const {
#pragma unroll 1
    for (int side = TEAMS == 1 ? 0 : team;; ++side) {
      stage_side(q, side, slab, fresh);
      if (TEAMS > 1 || side) return;
#pragma unroll
      for (int n = 0; n < 16 / tokens_a_step; ++n) q[n] = k[n];
    }
  }
  FWP_DEVICE void stage(int slab, bool fresh) const {
    if (several && c.map == Map::favor) {
      stage_favor(slab, s.queries, s.unit_q, false, fresh);
      stage_favor(slab, s.keys, s.unit_k, true, fresh);
      return;
    }
    Inputs q, k;
    const int first = c.map == Map::dpfp || (P::scaled && fresh) ? 0 : slab * base_rows;
    ask(q, false, first);
    ask(k, true, first);
    stage(q, k, slab, fresh);
  }

  // R x' of 64 (base_rows / 2) rows of R for the 16 tokens from `row` on, and |x'|^2 / 2 of the tokens g and g + 8.
  FWP_DEVICE void project(const Rows<const void>& rows, bool keys, int slab, Projected& p, float (&norm)[2]) const {
    const int first = slab * (base_rows / 2), m = c.d_dot / 2;
#pragma unroll
    for (int n = 0; n < slab_rows / 16; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) p[n][i] = 0;
    norm[0] = norm[1] = 0;
#pragma unroll 1
    for (int d = 0; d < c.d_key; d += 16) {
      Float2 a[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        a[i] = input_pair(rows, keys, row + g + 8 * (i & 1), d + 2 * t + 8 * (i >> 1));
        norm[i & 1] += a[i].x * a[i].x + a[i].y * a[i].y;
      }
#pragma unroll
      for (int n = 0; n < slab_rows / 16; ++n) {
        const int i = first + 8 * n + g;
        Float2 w[2];
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int at = d + 2 * t + 8 * e;
          w[e].x = i < m && at < c.d_key ? c.projection[i * c.d_key + at] : 0.f;
          w[e].y = i < m && at + 1 < c.d_key ? c.projection[i * c.d_key + at + 1] : 0.f;
        }
        mma_split(p[n], a, w[0], w[1]);
      }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) norm[r] = 0.5f * quad_sum(norm[r]);
  }
  // x' of a token, two of its inputs
  FWP_DEVICE Float2 input_pair(const Rows<const void>& rows, bool keys, int token, int d) const {
    const bool there = keys ? key_there(token) : query_there(token);
    const int64_t at = offset(rows, token) + d;
    return {there && d < c.d_key ? P::load(c.type, rows.data, at) * c.input_scale : 0.f,
            there && d + 1 < c.d_key ? P::load(c.type, rows.data, at + 1) * c.input_scale : 0.f};
  }
  FWP_DEVICE void stage_favor(int slab, Element* to, float* unit, bool keys, bool fresh) const {
    const Rows<const void>& rows = keys ? c.k : c.q;
    const int half = base_rows / 2, m = c.d_dot / 2;
    Projected p;
    float norm[2];
    // `unit` is the largest exponent of each token here, see scale_of.
    if (fresh) {
      float top[2] = {-INFINITY, -INFINITY};
#pragma unroll 1
      for (int n_slab = 0; n_slab < slabs; ++n_slab) {
        project(rows, keys, n_slab, p, norm);
#pragma unroll
        for (int n = 0; n < slab_rows / 16; ++n)
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const float x = absolute(p[n][i]);  // 0 behind the last row of R: no matter
            top[i >> 1] = x > top[i >> 1] ? x : top[i >> 1];
          }
      }
#pragma unroll
      for (int r = 0; r < 2; ++r) {
#pragma unroll
        for (int d = 1; d < 4; d *= 2) {
          const float other = shuffle_xor(top[r], d);
          top[r] = other > top[r] ? other : top[r];
        }
        top[r] -= norm[r];
        if (t == 0) unit[row + g + 8 * r] = top[r] < largest_favor_exponent ? top[r] : largest_favor_exponent;
      }
      sync_warp();
    }
    project(rows, keys, slab, p, norm);
#pragma unroll
    for (int n = 0; n < slab_rows / 16; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int feature = 8 * n + 2 * t + (i & 1), token = row + g + 8 * (i >> 1);
        if (feature >= half) continue;
        const bool there = slab * half + feature < m;
        to[feature * ld + token] = P::element(there ? favor(p[n][i] - norm[i >> 1], unit[token]) : 0.f);
        to[(half + feature) * ld + token] = P::element(there ? favor(-p[n][i] - norm[i >> 1], unit[token]) : 0.f);
      }
  }
  static FWP_DEVICE float favor(float exponent, float top) {
    return exponential((exponent < largest_favor_exponent ? exponent : largest_favor_exponent) - top);
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
  // Calls f(rolled, j, i) for every 16 rows of features of the slab, from base row i on; j: DPFP's offset, 0 for the other
  // maps, which are not rolled.
  template <class F> FWP_DEVICE void for_features(F f) const {
    if (c.map == Map::dpfp) {
#pragma unroll 1
      for (int j = 1; j <= c.nu; ++j)
#pragma unroll 1
        for (int i = 0; i < base_rows; i += 16) f(std::true_type{}, j, i);
    } else {
#pragma unroll 1
      for (int i = 0; i < base_rows; i += 16) f(std::false_type{}, 0, i);
    }
  }
  // 16 rows of features of the slab, by number: DPFP's offset and the first base row.
  struct Tile16 {
    int j, i;
  };
  FWP_DEVICE int feature_tiles() const { return (c.map == Map::dpfp ? c.nu : 1) * (base_rows / 16); }
  FWP_DEVICE Tile16 feature_tile(int number) const {
    const int each = base_rows / 16;
    return {c.map == Map::dpfp ? 1 + number / each : 0, number % each * 16};
  }
  FWP_DEVICE int feature_number(int slab, int j, int i) const { return gpu::feature_number(c, base_rows, slab, j, i); }
  FWP_DEVICE int state_row(int slab, int j, int i) const { return (c.map == Map::dpfp ? j - 1 : slab) * base_rows + i; }

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
