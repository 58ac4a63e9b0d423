// Forward of one (batch row, head), up to LT queries and keys at a time, in one launch. A head has one block. With a
// state (state.cuh) it has one for every slice_columns columns of values, which carries these from segment to segment.
//
//     P = M o (Q K^T),  KK = stril(K K^T);  seen = KK 1 + K z0 + eps;  read_rate = 1 / seen, or 1 where not normalised
//     E = V - read_rate (KK beta E + K W0)                    delta: what is missing;  E = V  for the sum rule
//     N = P beta E + Q W0,  den = P 1 + Q z0 + eps;  out = N, or N / den
//     W = W0 + K^T beta E,  z = z0 + K^T 1
//
// Under rules that decay, P and KK are multiplied by the D of decay.cuh, W and z sum what the segment's end finds, and products
// with W0 and z0, and both in W and z, are multiplied by what is left of the state. Under the gated rule E = V, and beta counts
// in den and z as in N and W.
//
// It reads q, k, v (and the mask, beta, the initial state) and writes out (and the state), nothing else. The unit
// triangular system in E is solved by blocks of 16 tokens with the inverted diagonal blocks, in LT / 16 barriers. A
// warp owns 16 queries and the keys of the same numbers; with two teams of warps, one owns queries, the other keys.
//
// In pieces (forward_pieces.cuh) several launches share this. Where outputs are not normalised, the system does not depend on
// the state: with T = (I + KK beta)^-1, made before any state is known (inverse.cuh), E = T (V - K W0).
#pragma once

#include "block.cuh"
#include "inverse.cuh"
#include "stateful.cuh"

namespace fwp::gpu {

// What a launch does of it: all, or of a forward in pieces what is known of a segment's keys before any state is, the walk that
// writes states (and E, where there is a T), or the outputs of a segment.
enum class Part { all, keys, writing, reading };
template <int LT, Kind K, Part PART>
constexpr int forward_columns = PART == Part::keys ? LT : has_states<K> ? slice_columns : value_block;

template <class P, int LT, Rule RULE, Kind K, class Before = Columns<const float>, class After = Columns<float>,
          int TEAMS = 1, Part PART = Part::all>
struct Forward : Inverse<Decay<Stateful<P, LT, K, forward_columns<LT, K, PART>, TEAMS>, LT, RULE>, P, LT, TEAMS> {
  static constexpr int columns = forward_columns<LT, K, PART>;
  using Base = Inverse<Decay<Stateful<P, LT, K, columns, TEAMS>, LT, RULE>, P, LT, TEAMS>;
  using Base::c, Base::here, Base::s, Base::g, Base::t, Base::row, Base::stride, Base::tiles, Base::strip_tiles,
      Base::lane, Base::states, Base::team, Base::value_tiles;
  using typename Base::Pair, typename Base::Strip, typename Base::Values;
  static constexpr bool DELTA = corrects(RULE), DECAYS = decays(RULE), GATED = RULE == Rule::gated;
  static constexpr bool SOLVES = DELTA && (PART == Part::all || PART == Part::keys);  // by substitution
  static_assert(serves(RULE));
  using KeyStrip = typename Base::template KeyStrip<DELTA>;

  // A block with a state serves `columns` columns of values from `column` on, any other all of them.
  const Before before;
  const After after;
  const int column;
  const int keys;            // tiles of keys
  const int last_q, last_k;  // own queries (keys) read the tiles of keys before last_q (last_k)

  FWP_DEVICE Forward(const Call& call, const Segment& segment, int column, const Before& before, const After& after)
      : Base(call, segment, false), before(before), after(after), column(column), keys(Base::source_tiles),
        last_q(row / 16 >= Base::target_tiles ? 0 : c.causal && row / 16 + 1 < keys ? row / 16 + 1 : keys),
        last_k(DELTA && row / 16 < keys ? row / 16 + 1 : 0) {}

  FWP_DEVICE bool state() const { return states && before.exists(); }

  // Features of 16 own tokens times the state: times W, and in column 0 of `z` times z.
  struct Read {
    Values W;
    float z[4];
  };
  FWP_DEVICE void add_read(Read& read, const Pair (&features)[4], const typename Base::Rows16& rows) const {
    Base::add_rows(read.W, read.z, features, rows, c.normalize_output);
  }

  FWP_DEVICE void run() {
    Strip A;
    KeyStrip B;
    float sum_q[4] = {}, sum_k[4] = {}, by[2], rate[2];
    Read read_q{}, read_k{};
    typename Base::Rows16 rows;
    Base::clear(A);
    Base::clear(B);
    if (DECAYS) Base::find_decay(thread_index());
    constexpr int together = states || (P::scaled && tiles > 1) ? 2 : 1;  // as in products.cuh
    Base::template grams<DELTA, together>(
        A, B, sum_q, sum_k, last_q, last_k,
        [&](int slab, int j, int i) {
          if (state()) Base::load_rows(rows, slab, j, i, before, 0);
        },
        [&](const Pair (&own)[2][4]) {
          if (state() && here.queries > row) add_read(read_q, own[0], rows);
          if (state() && last_k) add_read(read_k, own[1], rows);
        });
    Base::finish_scales(sum_q, sum_k);
    sync_block();
    note_written();
    weigh_queries(A, read_q, by);
    if (DELTA) weigh_keys(B, read_k, rate);
    const auto serve = [&](int first) {
      Values x, out;
      Base::load_values(c.v, true, first, x);
      begin_outputs(out, read_q);
      sync_block();  // until then other warps read E of the previous columns
      if constexpr (DELTA) {
        begin_values(x, read_k, rate);
        substitute(x, B);
      } else {
        Base::share_values(s.E, 0, x);
        sync_block();
      }
      Base::add_read(out, A, s.E, 0, last_q, 0);
      finish_outputs(out, by, first);
      if (after.exists()) write_state();  // a barrier ago every warp had read the state before
    };
    if (before.exists() || after.exists()) {
      serve(column);
    } else {
      FWP_ROLLED for (int first = 0; first < c.d_value; first += columns) serve(first);
    }
  }

  // A barrier of all warps, of both teams if there are two.
  static FWP_DEVICE void meet(Site site = Site::here()) {
    if constexpr (TEAMS > 1) sync_teams(2 * LT * TEAMS, site);
    else sync_block(site);
  }

  // run() by two teams, which meet at the same barriers: one has the queries, A and the outputs, the other the keys, B
  // and E. Each block of E is added to the outputs as soon as it is there.
  FWP_DEVICE void run_in_teams() {
    if constexpr (PART == Part::writing && DELTA) correct();
    else if (team == 1) of_keys();
    else if (PART != Part::writing) of_queries();
    else meet(), meet();
    if (after.exists()) write_state();
  }
  FWP_DEVICE void of_queries() {
    Strip A;
    Read read{};
    Values out;
    float sum[4] = {}, by[2];
    products(A, sum, read, s.queries, last_q, here.queries > row);
    Base::finish_scale(false, sum);
    meet();
    weigh_queries(A, read, by);
    begin_outputs(out, read);
    if (!SOLVES) meet();
    FWP_ROLLED for (int m = 0; m < keys; ++m) {
      if (SOLVES) meet();
      if (m >= last_q) continue;
      Float2 a[4];
      Base::operand_at(a, A, m);
      Base::add_product(out, a, s.E, m, 0);
    }
    finish_outputs(out, by, column);
  }
  FWP_DEVICE void of_keys() {
    Strip B;  // unused where no system is solved
    Read read{};
    Values x;
    float sum[4] = {}, rate[2];
    if (DECAYS) Base::find_decay(thread_index() - 2 * LT);
    if constexpr (PART == Part::all) products(B, sum, read, s.keys, last_k, last_k);
    if constexpr (DELTA && !SOLVES) load_missing(x);
    else Base::load_values(c.v, true, column, x);
    if constexpr (PART == Part::all) Base::finish_scale(true, sum);
    else load_scales(thread_index() - 2 * LT);
    meet();
    if (PART != Part::reading) note_written();
    if constexpr (SOLVES) {
      weigh_keys(B, read, rate);
      begin_values(x, read, rate);
      substitute(x, B);
    } else {
      Base::share_values(s.E, 0, x);
      meet();
    }
  }
  // Products of own features with keys, their sums, and if `wanted` their products with the state.
  FWP_DEVICE void products(Strip& strip, float (&sum)[4], Read& read, const typename Base::Element* own, int last,
                           bool wanted) {
    typename Base::Rows16 rows;
    Base::clear(strip);
    Base::template gram<2, true>(
        strip, sum, own, s.keys, 0, last,
        [&](int slab, int j, int i) {
          if (state() && wanted) Base::load_rows(rows, slab, j, i, before, 0);
        },
        [&](const Pair (&features)[4]) {
          if (state() && wanted) add_read(read, features, rows);
        });
  }

  FWP_DEVICE void note_written() const {
    if (t == 0)
      FWP_UNROLL for (int r = 0; r < 2; ++r) {
        const int i = row + g + 8 * r;
        const float left = s.scale_k[i] * (DECAYS ? Base::at_end(i) : 1.f);
        s.written[i] = left * s.beta[i];
        if (DELTA && DECAYS) s.read_rate[i] = left;
      }
  }
  // Turns A from products of stored features into P beta. by: what outputs are multiplied by.
  FWP_DEVICE void weigh_queries(Strip& A, const Read& read, float (&by)[2]) const {
    const float scale[2] = {s.scale_q[row + g], s.scale_q[row + g + 8]};
    float den[2] = {}, zx[2] = {};
    Base::template for_decay<DECAYS, false>(0, last_q, [&](int n, int i, int j, float left) {
      const float x = c.causal && j > Base::row_of(i) ? 0.f : A[n][i] * (scale[i >> 1] * s.scale_k[j]);
      A[n][i] = x * (left * s.beta[j]);
      den[i >> 1] += GATED ? A[n][i] : x * left;
    });
    if (state()) Base::first_column(zx, read.z);
    FWP_UNROLL for (int r = 0; r < 2; ++r)
      by[r] = Base::rate_of(Base::quad_sum(den[r]) + share(row + g + 8 * r) * zx[r] + c.eps);
  }
  // Likewise turns B into -read_rate KK beta, the negative of the system's strictly lower triangle, and stores the
  // inverse of its own diagonal block in shared memory. rate: read rates.
  FWP_DEVICE void weigh_keys(KeyStrip& B, const Read& read, float (&rate)[2]) const {
    if constexpr (DELTA) {
      const float scale[2] = {s.scale_k[row + g], s.scale_k[row + g + 8]};
      float seen[2] = {}, zx[2] = {};
      Base::template for_decay<DECAYS, false>(true, 0, last_k, [&](int n, int i, int j, float left) {
        const float y = j >= Base::row_of(i) ? 0.f : B[n][i] * (scale[i >> 1] * s.scale_k[j]) * left;
        seen[i >> 1] += y;
        B[n][i] = y * s.beta[j];
      });
      if (state()) Base::first_column(zx, read.z);
      FWP_UNROLL for (int r = 0; r < 2; ++r) rate[r] = Base::rate_of(Base::quad_sum(seen[r]) + key_share(row + g + 8 * r) * zx[r] + c.eps);
      if (!last_k) return;
      float* block = s.square + row / 16 * 16 * 17;
      Base::for_strip(0, last_k, [&](int n, int i, int j) {
        B[n][i] *= -rate[i >> 1];
        if (j >= row && j < row + 16) block[(g + 8 * (i >> 1)) * 17 + j - row] = -B[n][i];
      });
      sync_warp();
      Base::invert(block);
    }
  }
  // What a query's and a key's products with the state before the segment are multiplied by.
  FWP_DEVICE float share(int query) const { return s.scale_q[query] * (DECAYS && state() ? Base::left_of_state(query) : 1.f); }
  FWP_DEVICE float key_share(int key) const { return s.scale_k[key] * (DECAYS && state() ? Base::left_of_state(key, true) : 1.f); }
  FWP_DEVICE void begin_outputs(Values& out, const Read& read) const {
    Base::clear(out);
    if (!state()) return;
    const float by[2] = {share(row + g), share(row + g + 8)};
    FWP_UNROLL for (int n = 0; n < value_tiles; ++n)
      FWP_UNROLL for (int i = 0; i < 4; ++i) out[n][i] = by[i >> 1] * read.W[n][i];
  }
  FWP_DEVICE void begin_values(Values& x, const Read& read, const float (&rate)[2]) const {
    if (state()) {
      const float by[2] = {key_share(row + g), key_share(row + g + 8)};
      FWP_UNROLL for (int n = 0; n < value_tiles; ++n)
        FWP_UNROLL for (int i = 0; i < 4; ++i) x[n][i] -= rate[i >> 1] * by[i >> 1] * read.W[n][i];
    }
  }
  FWP_DEVICE void finish_outputs(Values& out, const float (&by)[2], int first) const {
    FWP_UNROLL for (int n = 0; n < value_tiles; ++n)
      FWP_UNROLL for (int i = 0; i < 4; ++i) out[n][i] *= by[i >> 1];
    Base::store_values(c.out, here.queries, first, out);
  }

  // Solves for E in shared memory; x comes in as own rows of the right side. Block m is there after m + 1 barriers.
  FWP_DEVICE void substitute(Values& x, const KeyStrip& B) const {
    const int w = row / 16;
    const float* block = s.square + w * 16 * 17;
    if constexpr (DELTA) {
      if (w >= keys) Base::share_values(s.E, 0, x);
      FWP_ROLLED for (int m = 0; m < keys; ++m) {
        if (w == m) {
          Base::share_values(s.E, 0, x);
          sync_warp();
          Float2 a[4];
          FWP_UNROLL for (int i = 0; i < 4; ++i) {
            const float* at = block + (g + 8 * (i & 1)) * 17 + 2 * t + 8 * (i >> 1);
            a[i] = {at[0], at[1]};
          }
          Base::clear(x);
          Base::add_product(x, a, s.E, w, 0);
          sync_warp();
          Base::share_values(s.E, 0, x);
        }
        meet();
        if (w > m) {
          Float2 a[4];
          Base::operand_at(a, B, m);
          Base::add_product(x, a, s.E, m, 0);
        }
      }
    }
  }

  // ---- in pieces ----

  // Where own rows of E are in memory, in the columns of the block.
  FWP_DEVICE float* noted_missing() const {
    return c.missing + (Base::number(c, here, true) * LT + row + g) * (slices(c) * slice_columns) + column + 2 * t;
  }
  FWP_DEVICE float* noted_scales() const { return c.scales + Base::number(c, here, true) * LT; }
  FWP_DEVICE void load_scales(int token) const {
    if (token >= 0 && token < LT) s.scale_k[token] = noted_scales()[token];
  }
  // Stores what is known of the keys before any state is: features, scales, and for rules that correct T.
  FWP_DEVICE void note_keys() {
    Strip B;
    float sum[4] = {};
    Base::note_features(true);
    if (DELTA && DECAYS) Base::find_decay(thread_index());
    Base::clear(B);
    Base::template gram<2, true>(B, sum, s.keys, s.keys, 0, last_k, [](int, int, int) {}, [](auto&) {});
    Base::finish_scale(true, sum);
    sync_block();
    if (thread_index() < LT) noted_scales()[thread_index()] = s.scale_k[thread_index()];
    if constexpr (DELTA) note_inverse(B);
  }
  // B comes in as the products of stored keys.
  FWP_DEVICE void note_inverse(Strip& B) const {
    Values x;
    float rate[2];
    weigh_keys(B, {}, rate);
    FWP_UNROLL for (int n = 0; n < value_tiles; ++n)
      FWP_UNROLL for (int i = 0; i < 4; ++i) x[n][i] = Base::row_of(i) == 8 * n + 2 * t + (i & 1) ? 1.f : 0.f;
    substitute(x, B);
    float* to = Base::noted_inverse() + (row + g) * LT + 2 * t;
    FWP_UNROLL for (int n = 0; n < value_tiles; ++n)
      FWP_UNROLL for (int r = 0; r < 2; ++r)
        if (n < 2 * last_k) Single::store_pair(Type::float32, to + 8 * r * LT, 8 * n, {x[n][2 * r], x[n][2 * r + 1]});
  }
  // Shares and stores E = T (V - K W0). Each team takes half of the features in K W0.
  FWP_DEVICE void correct() {
    typename Base::Operands T;
    typename Base::Given given;
    Read read{};
    Values x;
    Base::template load_inverse<false>(T, 0, last_k);
    if (team) Base::load_values(c.v, true, column, given);
    load_scales(thread_index());
    if (DECAYS) Base::find_decay(thread_index());
    if (state() && last_k) {
      typename Base::Rows16 rows;
      Base::for_features([&](auto rolled, int j, int i) {
        Pair own[1][4];
        Base::load_rows(rows, 0, j, i, before, 0);
        Base::template own_features<rolled.value>(own, j, i, [&](int) { return s.keys; });
        Base::add_rows(read.W, read.z, own[0], rows, false);
      }, team, TEAMS);
    }
    Base::clear(x);
    if (team)
      Base::for_values(given, [&](int n, int r, Float2 y) {
        x[n][2 * r] = y.x;
        x[n][2 * r + 1] = y.y;
      });
    meet();
    if (team) note_written();
    begin_values(x, read, {1, 1});
    Base::share_part(x);
    meet();
    typename Base::HalfValues E;
    Base::multiply(E, T, 0, last_k);
    if (c.missing && last_k) {
      float* to = noted_missing();
      const int width = slices(c) * slice_columns;
      Base::for_pairs(E, [&](int r, int at, Float2 y) { Single::store_pair(Type::float32, to + 8 * r * width, at, y); });
    }
    meet();
  }
  FWP_DEVICE void load_missing(Values& x) const {
    const float* from = noted_missing();
    FWP_UNROLL for (int n = 0; n < value_tiles; ++n)
      FWP_UNROLL for (int r = 0; r < 2; ++r) {
        const Float2 E = last_k ? Single::load_pair(Type::float32, from + 8 * r * slices(c) * slice_columns, 8 * n) : Float2{0, 0};
        x[n][2 * r] = E.x;
        x[n][2 * r + 1] = E.y;
      }
  }

  FWP_DEVICE void write_state() {
    constexpr int count = 4 / TEAMS, warps = TEAMS * tiles;  // tiles of features that share one read of E
    const float* weights_z = GATED ? s.written : DECAYS ? s.read_rate : s.scale_k;
    Base::for_slabs([&](int slab) {
      FWP_ROLLED for (int first = team * tiles + row / 16; first < Base::feature_tiles(); first += count * warps) {
        typename Base::Tile16 tile[count] = {};
        FWP_UNROLL for (int e = 0; e < count; ++e) {  // past the last tile, the last one again
          const int number = first + e * warps;
          tile[e] = number < Base::feature_tiles() ? Base::feature_tile(number) : tile[e ? e - 1 : 0];
        }
        Values x[count];
        float xz[count][4];
        Base::load_outer(x, xz, slab, tile, 0, before);
        if (DECAYS) Base::scale_outer(x, xz, Base::across(0, tiles));
        Base::add_outer(x, xz, s.keys, tile, s.E, 0, s.written, weights_z, Base::source_tiles);
        Base::store_outer(x, xz, slab, tile, 0, after);
        if constexpr (PART == Part::writing)
          if (here.after.W) Base::store_outer(x, xz, slab, tile, 0, kept());
      }
    });
  }
  // Where the state is stored in memory too, by each slice its columns and by the first z.
  FWP_DEVICE Columns<float> kept() const {
    return columns_of(c, State<float>{here.after.W, column ? nullptr : here.after.z}, here.head, column, slice_columns);
  }
};

// All segments of a head one after the other, for the values' columns from `column` on.
template <class P, int LT, Rule RULE, Kind K> struct SegmentLoop {
  static constexpr int teams = forward_teams<K>, threads = 2 * LT * teams;
  const Call& c;
  const int head, column;

  template <class Before, class After>
  FWP_DEVICE void take(int n, const Segment& p, const Before& before, const After& after) {
    using Own = Forward<P, LT, RULE, K, Before, After, teams>;
    if (n + 1 < segments(c, LT)) Own::fetch(c, segment(c, LT, head, n + 1), column);
    Own own(c, p, column, before, after);
    if constexpr (teams == 1) own.run();
    else own.run_in_teams();
    sync_block();  // before shared memory is overwritten and the state read
  }
  // Whether the state after segment n is needed, by the next segment or in memory.
  FWP_DEVICE bool writes(int n) const {
    return n < key_segments(c, LT) && (n + 1 < segments(c, LT) || leaves(c, LT, n));
  }

  FWP_DEVICE void resident(char* room) {
    Resident state(c, room);
    if (c.initial_W || writes(0))
      state.load(c, slice_of<const float>(c, {c.initial_W, c.initial_z}, head, column), threads);
    FWP_ROLLED for (int n = 0; n < segments(c, LT); ++n) {
      const Segment p = segment(c, LT, head, n);
      take(n, p, state.only_if(n || c.initial_W), state.only_if(writes(n)));
      if (leaves(c, LT, n)) state.store(c, slice_of(c, p.after, head, column), column == 0, threads);
    }
  }
  FWP_DEVICE void in_memory(float* z) {
    if (c.initial_z)
      for (int i = thread_index(); i < c.d_dot; i += threads) z[i] = c.initial_z[int64_t(head) * c.d_dot + i];
    FWP_ROLLED for (int n = 0; n < segments(c, LT); ++n) {
      const Segment p = segment(c, LT, head, n);
      auto before = slice_of(c, p.before, head, column);
      auto after = slice_of(c, p.after, head, column);
      float* to = after.z;
      before.z = after.z = z;
      take(n, p, before, writes(n) ? after : Columns<float>{});
      if (leaves(c, LT, n) && to && column == 0)
        for (int i = thread_index(); i < c.d_dot; i += threads) to[i] = z[i];
    }
  }
};

// How many blocks a multiprocessor is to hold: 128 registers a thread where these suffice. At 32 tokens of 64 inputs
// its shared memory holds eight blocks of DPFP, so the 132 multiprocessors of an H100 hold a thousand heads.
template <class P, int LT, Rule RULE, Kind K>
constexpr int blocks_at_once = has_states<K>                                                          ? 1
                               : P::scaled && K == Kind::plain && (LT < longest_segment || RULE == Rule::sum) ? 256 / LT
                               : LT <= 32                                                            ? 192 / LT
                                                                                                     : 1;

template <class P, int LT, Rule RULE, Kind K>
FWP_KERNEL(2 * LT * forward_teams<K>, (blocks_at_once<P, LT, RULE, K>)) forward_kernel(FWP_CONSTANT Call c) {
  if constexpr (!has_states<K>) {
    Forward<P, LT, RULE, K>(c, whole(c, block_index()), 0, {}, {}).run();
  } else {
    const int used = Shared<P, LT, K, slice_columns, forward_teams<K>>().lay(nullptr, c, false) + decay_bytes<LT>(RULE, false);
    char* room = shared_memory(used + state_bytes(c)) + used;
    SegmentLoop<P, LT, RULE, K> loop{c, block_index() / slices(c), block_index() % slices(c) * slice_columns};
    if (K == Kind::state || c.resident) loop.resident(room);
    else loop.in_memory(reinterpret_cast<float*>(room));
  }
}

template <class P, Rule RULE, Kind K> const char* launch_forward(const Call& c, void* stream) {
  return with_tokens(c, [&](auto tokens) {
    constexpr int LT = decltype(tokens)::count;
    if constexpr (!exists(LT, RULE, K, false)) {
      return "no instance";  // with_tokens never asks for it
    } else {
      const auto kernel = forward_kernel<P, LT, RULE, K>;
      const int blocks = c.batch * c.heads * (has_states<K> ? slices(c) : 1);
      return launch(kernel, blocks, 2 * LT * forward_teams<K>, bytes_of<P>(c, false), static_cast<Stream>(stream), c);
    }
  });
}

}  // namespace fwp::gpu

// Used by the sources in instances/.
#define FWP_INSTANCE_OF_BYTES(P) template int fwp::gpu::bytes_of<fwp::gpu::P>(const fwp::gpu::Call&, bool);
#define FWP_INSTANCE_OF_FORWARD(P, RULE, KIND)                                                        \
  template const char* fwp::gpu::launch_forward<fwp::gpu::P, fwp::Rule::RULE, fwp::gpu::Kind::KIND>(const fwp::gpu::Call&, \
                                                                                            void*);
