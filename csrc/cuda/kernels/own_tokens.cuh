// The 16 tokens that a warp owns: their place in the tensors, which of them exist, and how their inputs are loaded.
#pragma once

#include "maps.cuh"
#include "segment.cuh"
#include "shared.cuh"

namespace fwp::gpu {

// With one team each warp owns 16 queries and the keys of the same numbers; of two, one owns queries, the other keys.
template <class P, int LT, Kind K, int COLUMNS = value_block, int TEAMS = 1> struct OwnTokens {
  static constexpr bool states = has_states<K>, several = K == Kind::general;  // several slabs and maps in one instance
  static constexpr int tiles = LT / 16, strip_tiles = LT / 8, value_tiles = COLUMNS / 8;
  static constexpr int ld = Shared<P, LT, K>::ld, raw_ld = Shared<P, LT, K>::raw_ld;
  using Element = typename P::Element;
  using Pair = typename P::Pair;
  using Strip = float[strip_tiles][4];
  using Values = float[value_tiles][4];

  const Call& c;
  const Segment here;
  const bool backward;
  Shared<P, LT, K, COLUMNS, TEAMS> s;
  const int lane, g, t, team, row, b, h;
  int stride;        // of E, Z, G
  int base_rows;     // resident
  int modulus;       // base rows are indexed modulo this: 2 d_key with offsets, else without limit
  const int a_down, b_down, a_across, b_across;  // corners of operands in base rows
  int slabs;
  int sources;       // the segment's keys up to the last that is not padding
  int source_tiles, target_tiles;

  // Functions that are not inlined build this object again: a pointer to it would keep it in memory, not in registers.
  struct Again {};
  FWP_DEVICE OwnTokens(const Call& call, const Segment& segment, bool backward, Again)
      : c(call),
        here(segment),
        backward(backward),
        lane(thread_index() % 32),
        g(lane / 4),
        t(lane % 4),
        team(TEAMS == 1 ? 0 : warp_index() / tiles),
        row(16 * tile_of(warp_index(), backward)),
        b(segment.head / call.heads),
        h(segment.head % call.heads),
        a_down(corner<A_down>()),
        b_down(corner<B_down>()),
        a_across(corner<A_across>()),
        b_across(corner<B_across>()) {
    lay(s, c, segment, backward);
    stride = value_stride<COLUMNS>(c, backward);
    base_rows = c.base_rows;
    modulus = c.nu ? 2 * c.d_key : 1 << 30;
    slabs = several ? slabs_of(c) : 1;
  }

  // Where everything is in shared memory. A segment that takes one side's features leaves the room of the other's to the next
  // segment, whose features come meanwhile.
  static FWP_DEVICE void lay(Shared<P, LT, K, COLUMNS, TEAMS>& s, const Call& c, const Segment& p, bool backward) {
    s.lay(shared_memory(s.lay(nullptr, c, backward)), c, backward);
    if ((p.taken == Sides::queries || p.taken == Sides::keys) && p.first / LT % 2) {
      Element* const other = s.queries;
      s.queries = s.keys;
      s.keys = other;
    }
  }
  // The corner stays in a register, except in the largest blocks, which have none to spare.
  template <class O> FWP_DEVICE int corner() const {
    const int at = P::template corner<O>(lane, ld);
    return LT < longest_segment ? kept(at) : at;
  }

  // ---- helpers ----

  FWP_DEVICE bool is_favor() const { return K == Kind::favor || (several && c.m); }
  // with_phi calls f with the call's map, out of all maps that the instance serves.
  struct Served {
    template <Map M> static constexpr bool has = several || Phi<M>::projects == (K == Kind::favor);
  };
  template <class F> FWP_DEVICE decltype(auto) with_phi(F f) const { return with_map<Served>(c.map, f); }
  // with_own: out of the maps without a projection, whose base rows are each made of one input.
  struct OfInputs {
    template <Map M> static constexpr bool has = !Phi<M>::projects;
  };
  template <class F> FWP_DEVICE decltype(auto) with_own(F f) const { return with_map<OfInputs>(c.map, f); }
  // with_elementwise: out of the maps whose features, too, are each made of one input.
  struct Elementwise {
    template <Map M> static constexpr bool has = !Phi<M>::projects && !Phi<M>::rolls;
  };
  template <class F> FWP_DEVICE decltype(auto) with_elementwise(F f) const { return with_map<Elementwise>(c.map, f); }

  FWP_DEVICE float quad_sum(float x) const {
    x += shuffle_xor(x, 1);
    return x + shuffle_xor(x, 2);
  }
  template <int N> static FWP_DEVICE void clear(float (&x)[N][4]) {
    FWP_UNROLL for (int n = 0; n < N; ++n)
      FWP_UNROLL for (int i = 0; i < 4; ++i) x[n][i] = 0;
  }
  // Calls f(n, i, column) for every number of a strip, or of its tiles of 16 columns first .. last - 1.
  template <class F> FWP_DEVICE void for_strip(F f) const { for_strip(0, tiles, f); }
  template <class F> FWP_DEVICE void for_strip(int first, int last, F f) const {
    FWP_UNROLL for (int m = 0; m < tiles; ++m)
      if (m >= first && m < last)
        FWP_UNROLL for (int n = 2 * m; n < 2 * m + 2; ++n)
          FWP_UNROLL for (int i = 0; i < 4; ++i) f(n, i, 8 * n + 2 * t + (i & 1));
  }
  FWP_DEVICE int row_of(int i) const { return row + g + 8 * (i >> 1); }  // of element i of any accumulator

  // Which 16 tokens a warp owns. In a causal forward later tokens have more work. Warps 4 apart share a scheduler, so
  // of eight warps each such pair gets tiles whose work adds up to the same.
  static FWP_DEVICE int tile_of(int warp, bool backward) {
    if (TEAMS > 1) return warp % tiles;
    return tiles == 8 && !backward && warp >= 4 ? 11 - warp : warp;
  }

  // ---- tokens ----

  FWP_DEVICE bool query_there(int i) const { return i < here.queries; }
  FWP_DEVICE bool key_there(int i) const { return s.present[i] != 0; }
  // An unsigned i costs fewer registers where kernels have none to spare.
  template <class V, class I> FWP_DEVICE int64_t offset(const Rows<V>& rows, I i) const {
    return b * rows.batch + (here.first + i) * rows.time + h * rows.head;
  }

  static FWP_DEVICE Key load_key(const Call& c, const Segment& p) {
    const int i = thread_index(), b = p.head / c.heads, h = p.head % c.heads;
    const auto& mask = c.key_padding_mask;
    const bool there = i < p.keys && !(mask.data && mask.data[b * mask.batch + (p.first + i) * mask.time]);
    const auto beta = [&] { return c.beta.data[b * c.beta.batch + (p.first + i) * c.beta.time + h * c.beta.head]; };
    return {there, !there ? 0.f : c.beta.data ? beta() : 1.f};
  }
  // Sets sources, s.present and s.beta. Its barrier is also that of features that were taken.
  FWP_DEVICE void find_last_key() {
    const int i = thread_index();
    const Key own = here.taken == Sides::none ? load_key(c, here) : here.key;
    float last = own.there ? float(i + 1) : 0.f;
    FWP_UNROLL for (int d = 1; d < 32; d *= 2) {
      const float other = shuffle_xor(last, d);
      last = other > last ? other : last;
    }
    if (i < LT && lane == 0) s.last_key[i / 32] = int(last);
    if (i < LT) {
      s.beta[i] = own.beta;
      s.present[i] = own.there;
    }
    sync_block();
    sources = 0;
    FWP_ROLLED for (int w = 0; w < (LT + 31) / 32; ++w) sources = s.last_key[w] > sources ? s.last_key[w] : sources;
  }

  // ---- inputs ----

  // Loads of inputs_at_once inputs of own tokens: each step loads a vector per lane, neighbouring lanes along a token.
  static constexpr int vector = 16 / sizeof(Element), lanes_a_token = inputs_at_once / vector,
                       tokens_a_step = 32 / lanes_a_token;
  using Inputs = Vector[16 / tokens_a_step];

  // Starts loading own tokens' inputs from `first` on, if they can be loaded as vectors.
  FWP_DEVICE void ask(Inputs& x, bool keys, int first) const {
    const Rows<const void>& rows = keys ? c.k : c.q;
    if (!rows.aligned) return;
    const int token = row + lane / lanes_a_token, d = first + lane % lanes_a_token * vector;
    const int end = d < c.d_key ? keys ? here.keys : here.queries : 0;
    const Element* from = static_cast<const Element*>(rows.data) + offset(rows, token) + d;
    FWP_UNROLL for (int n = 0; n < 16 / tokens_a_step; ++n) {
      if (token + n * tokens_a_step < end) x[n] = *reinterpret_cast<const Vector*>(from + n * tokens_a_step * rows.time);
      else x[n] = {};
    }
  }
  // Stores inputs first .. first + 63 of own tokens in `raw`, 0 where there are none.
  FWP_DEVICE void put_inputs(const Inputs& asked, bool keys, int first) const {
    const Rows<const void>& rows = keys ? c.k : c.q;
    Element* raw = s.raw + (team * LT + row) * raw_ld;
    if (rows.aligned) {
      FWP_UNROLL for (int n = 0; n < 16 / tokens_a_step; ++n) {
        const int token = n * tokens_a_step + lane / lanes_a_token;
        Vector y = asked[n];
        if (keys && !key_there(row + token)) y = {};
        *reinterpret_cast<Vector*>(raw + token * raw_ld + lane % lanes_a_token * vector) = y;
      }
    } else {
      FWP_ROLLED for (int e = lane; e < 16 * inputs_at_once; e += 32) {
        const int token = row + e / inputs_at_once, d = first + e % inputs_at_once;
        const bool there = d < c.d_key && (keys ? key_there(token) : query_there(token));
        raw[e / inputs_at_once * raw_ld + e % inputs_at_once] =
            there ? static_cast<const Element*>(rows.data)[offset(rows, token) + d] : Element(0);
      }
    }
    sync_warp();
  }
  // Returns these inputs as numbers: x[n][..] are pairs of tokens, laid out as the operand A_down of 16 inputs.
  FWP_DEVICE void read_inputs(Float2 (&x)[inputs_at_once / 16][4], const Inputs& asked, bool keys, int first) const {
    put_inputs(asked, keys, first);
    const Element* at = s.raw + (team * LT + row) * raw_ld + P::template corner<A_down>(lane, raw_ld);
    Pair pairs[inputs_at_once / 16][4];
    FWP_UNROLL for (int n = 0; n < inputs_at_once / 16; ++n) P::template load<A_down, raw_ld>(pairs[n], at + 16 * n);
    P::for_type(c.type, [&](auto type) {
      FWP_UNROLL for (int n = 0; n < inputs_at_once / 16; ++n)
        FWP_UNROLL for (int i = 0; i < 4; ++i) x[n][i] = P::template numbers<type.value>(pairs[n][i]);
    });
    sync_warp();
  }

  static FWP_DEVICE void store(Element* to, Pair x) { *reinterpret_cast<Pair*>(to) = x; }
  static FWP_DEVICE Pair load(const Element* from) { return *reinterpret_cast<const Pair*>(from); }
};

}  // namespace fwp::gpu
