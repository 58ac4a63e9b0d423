// From the last piece of a head to the first with the gradient of the state, dW and dz, which it leaves before each piece.
// A column of dW depends on no other column of a state, so a block has slice_columns of them, as in the forward. With the
// names of backward.cuh, for the delta rule
//
//     Z = (I + diag(rate) stril(K K^T))^-T (P^T dN + K dW);  dseen = rate Z.(V - E)
//     dW0 = dW + Q^T dN - K^T rate Z,  dz0 = dz + Q^T dden + K^T dseen
//
// and for the others dW + Q^T dN and dz + Q^T dden, under rules that decay with what decay.cuh leaves. dseen sums over all
// columns of values: each block adds its own part to its own dz. What does not depend on dW comes from preparation.cuh.
//
// It takes features from memory (noted.cuh); only the general kernels stage them. One of two teams of warps finds Z. Where the
// forward's launches have left T (inverse.cuh), both find beta Z = T^T beta (P^T dN + K dW), which is all that is needed of Z
// then.
#pragma once

#include "block.cuh"
#include "inverse.cuh"
#include "pieces.cuh"
#include "triangle.cuh"

namespace fwp::gpu {

// After and Before: where the gradient comes from and goes to, Resident or Columns.
template <class P, int LT, Rule RULE, Kind K, class After, class Before, int TEAMS, bool INVERTED>
struct GradientStep : Triangle<Inverse<Decay<Stateful<P, LT, K, slice_columns, TEAMS>, LT, RULE>, P, LT, TEAMS>> {
  using Base = Triangle<Inverse<Decay<Stateful<P, LT, K, slice_columns, TEAMS>, LT, RULE>, P, LT, TEAMS>>;
  using Base::c, Base::here, Base::s, Base::g, Base::t, Base::row, Base::stride, Base::tiles, Base::team, Base::value_tiles;
  using typename Base::Element, typename Base::Pair, typename Base::Values;
  static constexpr bool DELTA = corrects(RULE), DECAYS = decays(RULE), GATED = RULE == Rule::gated;
  static_assert(serves(RULE));
  using KeyStrip = typename Base::template KeyStrip<DELTA>;

  const Note<LT> note;
  const After after;
  const Before before;
  const int column, note_columns;
  const int w, keys, queries;  // own tile; tiles of keys and of queries
  const bool serves_keys;
  float *dN, *by_den, *by_seen;  // [LT][stride]; [LT]: weights of queries and of keys in dz


  FWP_DEVICE GradientStep(const Call& call, const Segment& segment, const Note<LT>& note, char* room, const After& after,
                          const Before& before, int column, int note_columns)
      : Base(call, segment, false), note(note), after(after), before(before), column(column), note_columns(note_columns),
        w(row / 16), keys(Base::source_tiles), queries(Base::target_tiles), serves_keys(TEAMS == 1 || team == 1),
        dN(reinterpret_cast<float*>(room)), by_den(dN + LT * stride), by_seen(by_den + LT) {}

  FWP_DEVICE void run() {
    if (DECAYS) Base::find_decay(thread_index());
    load_note();
    Values x;
    if constexpr (INVERTED) {
      multiply_inverse(x);
    } else if constexpr (DELTA) {
      KeyStrip B;
      if (serves_keys) products(B, x);
      sync_block();
      if (serves_keys) weigh(B, x);
      FWP_ROLLED for (int m = keys - 1; m >= 0; --m) {
        if (serves_keys && w == m) Base::solve_block(x, s.E, 0, true);
        sync_block();
        if (serves_keys && w < m) {
          Float2 a[4];
          Base::operand_at(a, B, m);
          Base::add_product(x, a, s.E, m, 0);
        }
      }
      if (serves_keys) weigh_state(x);
    } else {
      sync_block();
    }
    const int token = thread_index();
    if (DECAYS && token < LT) {
      s.scale_q[token] *= Base::left_of_state(token);
      by_den[token] *= Base::left_of_state(token);
    }
    sync_block();
    update();
  }

  FWP_DEVICE void load_note() const {
    if (here.queries)
      for (int i = thread_index(); i < LT * slice_columns; i += 2 * LT * TEAMS)
        dN[i / slice_columns * stride + i % slice_columns] = note.dN[i / slice_columns * note_columns + column + i % slice_columns];
    const int token = thread_index();
    if (token >= LT) return;
    s.scale_q[token] = here.queries ? note.scale_q[token] : 0.f;
    // The gradient of a denominator is that of all columns, so one slice adds it.
    by_den[token] = here.queries && column == 0 ? note.dden[token] * note.scale_q[token] : 0.f;
    if (DELTA) s.scale_k[token] = note.scale_k[token], s.read_rate[token] = note.read_rate[token];
  }

  // Shares beta Z. Each team takes half of the features in K dW.
  FWP_DEVICE void multiply_inverse(Values& x) {
    typename Base::Operands T;
    Base::template load_inverse<true>(T, w, keys);
    Base::clear(x);
    if (after.exists() && w < keys) {
      typename Base::Rows16 rows;
      float unused[4] = {};
      Base::for_features([&](auto rolled, int j, int i) {
        Pair own[1][4];
        Base::load_rows(rows, 0, j, i, after, 0);
        Base::template own_features<rolled.value>(own, j, i, [&](int) { return s.keys; });
        Base::add_rows(x, unused, own[0], rows, false);
      }, team, TEAMS);
    }
    sync_block();
    float by[2];
    FWP_UNROLL for (int r = 0; r < 2; ++r) {
      const int i = row + g + 8 * r;
      by[r] = s.beta[i] * s.scale_k[i];
      // The gradient comes before rates that do not depend on z, so they are 1.
      if (team && t == 0) s.written[i] = DECAYS ? -s.scale_k[i] * Base::left_of_state(i, true) : -s.scale_k[i];
      if (DECAYS) by[r] *= Base::at_end(i);
    }
    const float* read = note.read + (row + g) * note_columns + column + 2 * t;
    FWP_UNROLL for (int n = 0; n < value_tiles; ++n)
      FWP_UNROLL for (int r = 0; r < 2; ++r) {
        const Float2 y = team ? Single::load_pair(Type::float32, read + 8 * r * note_columns, 8 * n) : Float2{0, 0};
        const float beta = s.beta[row + g + 8 * r];
        x[n][2 * r] = by[r] * x[n][2 * r] + beta * y.x;
        x[n][2 * r + 1] = by[r] * x[n][2 * r + 1] + beta * y.y;
      }
    Base::share_part(x);
    sync_block();
    typename Base::HalfValues Z;
    Base::multiply(Z, T, w, keys);
  }

  // x = K dW and B = K K^T of stored features, of own keys.
  FWP_DEVICE void products(KeyStrip& B, Values& x) {
    typename Base::Rows16 rows;
    float unused[4] = {}, xz[4] = {};
    Base::clear(B);
    Base::clear(x);
    if constexpr (DELTA)
      Base::template gram<2, false>(
          B, unused, s.keys, s.keys, w, w < keys ? keys : 0,
          [&](int slab, int j, int i) {
            if (after.exists()) Base::load_rows(rows, slab, j, i, after, 0);
          },
          [&](const Pair (&features)[4]) {
            if (after.exists()) Base::add_rows(x, xz, features, rows, false);
          });
  }
  // Turns B into the transposed system's matrix, as in backward.cuh, and x into its right side.
  FWP_DEVICE void weigh(KeyStrip& B, Values& x) const {
    const float scale[2] = {s.scale_k[row + g], s.scale_k[row + g + 8]};
    Base::template for_decay<DECAYS, true>(true, w, keys, [&](int n, int i, int j, float left) {
      const float by = j > Base::row_of(i) ? -s.beta[j] * s.read_rate[j] : 0.f;
      B[n][i] *= by * (scale[i >> 1] * s.scale_k[j]) * left;
    });
    const float at_end[2] = {DECAYS ? scale[0] * Base::at_end(row + g) : scale[0],
                             DECAYS ? scale[1] * Base::at_end(row + g + 8) : scale[1]};
    Base::share_block(B, s.square, true);
    const float* read = note.read + (row + g) * note_columns + column + 2 * t;
    FWP_UNROLL for (int n = 0; n < value_tiles; ++n)
      FWP_UNROLL for (int r = 0; r < 2; ++r) {
        const Float2 y = Single::load_pair(Type::float32, read + 8 * r * note_columns, 8 * n);
        x[n][2 * r] = at_end[r] * x[n][2 * r] + y.x;
        x[n][2 * r + 1] = at_end[r] * x[n][2 * r + 1] + y.y;
      }
  }
  // The weights of own keys in dW and dz; x comes in as Z.
  FWP_DEVICE void weigh_state(const Values& x) const {
    float dseen[2] = {};
    if (c.normalize_output) {
      const float* missing = note.missing + (row + g) * note_columns + column + 2 * t;
      FWP_UNROLL for (int n = 0; n < value_tiles; ++n)
        FWP_UNROLL for (int r = 0; r < 2; ++r) {
          const Float2 y = Single::load_pair(Type::float32, missing + 8 * r * note_columns, 8 * n);
          dseen[r] += x[n][2 * r] * y.x + x[n][2 * r + 1] * y.y;
        }
    }
    FWP_UNROLL for (int r = 0; r < 2; ++r) {
      const int i = row + g + 8 * r;
      const float found = DECAYS ? Base::left_of_state(i, true) : 1.f;
      const float rate = s.beta[i] * s.read_rate[i] * s.scale_k[i] * found;
      dseen[r] = Base::quad_sum(dseen[r]);
      if (t == 0) s.written[i] = -rate, by_seen[i] = rate * dseen[r];
    }
  }

  FWP_DEVICE void update() {
    constexpr int count = 4 / TEAMS, warps = TEAMS * tiles;  // tiles of features that share one read of dN
    Base::for_slabs([&](int slab) {
      FWP_ROLLED for (int first = team * tiles + w; first < Base::feature_tiles(); first += count * warps) {
        typename Base::Tile16 tile[count] = {};
        FWP_UNROLL for (int e = 0; e < count; ++e) {  // past the last tile, the last one again
          const int number = first + e * warps;
          tile[e] = number < Base::feature_tiles() ? Base::feature_tile(number) : tile[e ? e - 1 : 0];
        }
        Values x[count];
        float xz[count][4];
        Base::load_outer(x, xz, slab, tile, 0, after);
        if (DECAYS) Base::scale_outer(x, xz, Base::across(0, tiles));
        Base::add_outer(x, xz, s.queries, tile, dN, 0, s.scale_q, by_den, queries);
        if (DELTA) Base::add_outer(x, xz, s.keys, tile, s.E, 0, s.written, by_seen, keys);
        Base::store_outer(x, xz, slab, tile, 0, before);
      }
    });
  }
};

template <class P, int LT, Rule RULE, Kind K, bool INVERTED> struct GradientWalk {
  static constexpr int teams = forward_teams<K>, threads = 2 * LT * teams;
  static constexpr Sides taken = K != Kind::state ? Sides::none : corrects(RULE) ? Sides::both : Sides::queries;
  const Pieces& c;
  const int head, column;
  char* room;  // of a step

  Segment next;  // if it takes one side's features, they are on their way

  // What the walk needs of piece n.
  FWP_DEVICE Segment part(int n) const {
    Segment p = piece(c, LT, head, n);
    if (RULE == Rule::sum) p.keys = 0;
    p.taken = taken;
    return p;
  }
  template <class After, class Before> FWP_DEVICE void step(int n, const After& after, const Before& before) {
    using Step = GradientStep<P, LT, RULE, K, After, Before, teams, INVERTED>;
    const auto begun = [&](int n) {
      Segment p = part(n);
      if (taken != Sides::none) Step::begin(c, p);
      return p;
    };
    if (taken != Sides::queries || n == pieces_of(c, LT) - 1) next = begun(n);
    if (n) Step::fetch(c, part(n - 1), c.d_value);
    Segment p = next;
    p.taken = taken;  // which the compiler does not know of `next`
    Step own(c, p, Note<LT>(c, head, n), room, after, before, column, c.note_columns);
    if (taken == Sides::queries && n > end()) next = begun(n - 1);
    own.run();
    sync_block();  // before shared memory is overwritten and the gradient read
  }
  // Where the gradient before piece n is stored, if it is; its z.
  FWP_DEVICE State<float> stored(int n) const {
    return n && !c.sources ? State<float>{} : gradient_before(c, n, column / slice_columns);
  }
  // The last piece that it comes to.
  FWP_DEVICE int end() const { return c.grad_initial_W ? 0 : 1; }
  // The gradient of the last state; dz is in the first columns' block.
  FWP_DEVICE State<const float> given() const { return {c.grad_W, column ? nullptr : c.grad_z}; }

  FWP_DEVICE void resident(char* at) {
    const Resident gradient(c, at);
    const int last = pieces_of(c, LT) - 1;
    gradient.load(c, slice_of(c, given(), head, column), threads);
    FWP_ROLLED for (int n = last; n >= end(); --n) {
      step(n, gradient.only_if(n < last || c.grad_W), gradient.only_if(true));
      const State<float> to = stored(n);
      if (to.W) gradient.store(c, slice_of(c, to, head, column), true, threads);
    }
  }
  // Queries alone leave gradients of the initial state one over the other.
  FWP_DEVICE void in_memory(float* z) {
    const int last = pieces_of(c, LT) - 1;
    const State<const float> from = given();
    for (int i = thread_index(); i < c.d_dot; i += threads) z[i] = from.z ? from.z[int64_t(head) * c.d_dot + i] : 0.f;
    FWP_ROLLED for (int n = last; n >= end(); --n) {
      const int to_n = c.sources ? n : 0, from_n = c.sources ? n + 1 : 0;
      const State<float> to = gradient_before(c, to_n, column / slice_columns);
      const State<const float> source = n == last ? from : State<const float>{gradient_before(c, from_n, 0).W, nullptr};
      auto after = slice_of(c, source, head, column);
      auto before = slice_of(c, to, head, column);
      float* to_z = before.z;
      after.z = before.z = z;
      step(n, after, before);
      if (to_z)
        for (int i = thread_index(); i < c.d_dot; i += threads) to_z[i] = z[i];
    }
  }
};

// Bytes of shared memory: of a step besides what every kernel has, and of what every kernel has.
template <int LT> constexpr int step_bytes = LT * (slice_columns + 4 + 2) * int(sizeof(float));
template <class P, int LT, Kind K> FWP_BOTH int walk_room(const Call& c) {
  return Shared<P, LT, K, slice_columns, forward_teams<K>>().lay(nullptr, c, false);
}
template <class P, int LT, Rule RULE, Kind K, bool INVERTED> FWP_DEVICE void walk_back(const Pieces& c) {
  constexpr int step = step_bytes<LT>;
  const int used = walk_room<P, LT, K>(c) + decay_bytes<LT>(RULE, false);
  char* room = shared_memory(used + step + state_bytes(c)) + used;
  const int head = block_index() / slices(c), column = block_index() % slices(c) * slice_columns;
  GradientWalk<P, LT, RULE, K, INVERTED> walk{c, head, column, room, {}};
  if (K == Kind::state || c.resident) walk.resident(room + step);
  else walk.in_memory(reinterpret_cast<float*>(room + step));
}
template <class P, int LT, Rule RULE, Kind K>
FWP_KERNEL(2 * LT * forward_teams<K>, 1) walk_kernel(FWP_CONSTANT Pieces c) {
  walk_back<P, LT, RULE, K, false>(c);
}
template <class P, int LT, Rule RULE, Kind K>
FWP_KERNEL(2 * LT * forward_teams<K>, 1) inverted_walk_kernel(FWP_CONSTANT Pieces c) {
  walk_back<P, LT, RULE, K, true>(c);
}

template <class P> int walk_bytes_of(const Call& c) {
  constexpr int LT = short_segment;
  const int used = kind_of(c) == Kind::state ? walk_room<P, LT, Kind::state>(c) : walk_room<P, LT, Kind::general>(c);
  return used + decay_bytes<LT>(c.rule, false) + step_bytes<LT> + state_bytes(c);
}

template <class P, Rule RULE, Kind K> const char* launch_walk(const Pieces& c, void* stream) {
  constexpr int LT = short_segment;
  auto kernel = walk_kernel<P, LT, RULE, K>;
  if constexpr (corrects(RULE) && K == Kind::state)
    if (c.inverses) kernel = inverted_walk_kernel<P, LT, RULE, K>;
  return launch(kernel, c.batch * c.heads * slices(c), 2 * LT * forward_teams<K>,
                walk_bytes_of<P>(c), static_cast<Stream>(stream), c);
}

}  // namespace fwp::gpu

// Used by the sources in instances/.
#define FWP_INSTANCE_OF_WALK_BYTES(P) template int fwp::gpu::walk_bytes_of<fwp::gpu::P>(const fwp::gpu::Call&);
#define FWP_INSTANCE_OF_WALK(P, RULE, KIND)                                                             \
  template const char* fwp::gpu::launch_walk<fwp::gpu::P, fwp::Rule::RULE, fwp::gpu::Kind::KIND>( \
      const fwp::gpu::Pieces&, void*);
