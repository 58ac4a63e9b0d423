// One segment of a (batch row, head) in a block: its features in shared memory, slab by slab.
#pragma once

#include "noted.cuh"
#include "state.cuh"

namespace fwp::gpu {

template <class P, int LT, Kind K, int COLUMNS = value_block, int TEAMS = 1>
struct Head : Noted<P, LT, K, COLUMNS, TEAMS> {
  using Base = Noted<P, LT, K, COLUMNS, TEAMS>;
  using Base::ask, Base::backward, Base::base_rows, Base::c, Base::find_last_key, Base::here, Base::several,
      Base::slabs, Base::source_tiles, Base::sources, Base::stage, Base::target_tiles, Base::team;
  using typename Base::Again, typename Base::Inputs;


  int staged = -1;  // the slab in shared memory

  FWP_DEVICE Head(const Call& call, const Segment& segment, bool backward) : Base(call, segment, backward, Again{}) {
    Inputs q, k;
    const bool taken = here.taken != Sides::none, stages = !several && !taken;
    if (taken) copies_arrived();
    if (stages) {
      ask(q, TEAMS > 1 && team, 0);
      if (TEAMS == 1) ask(k, true, 0);
    }
    find_last_key();
    target_tiles = (here.queries + 15) / 16;
    source_tiles = (sources + 15) / 16;
    if (stages) stage(q, k, 0, true);
    if (!taken) sync_block();
  }
  FWP_DEVICE Head(const Call& call, const Segment& segment, bool backward, Again) : Base(call, segment, backward, Again{}) {}

  static FWP_CALLED void restage(const Call& c, int head, int first, int queries, int keys, bool backward, int slab,
                                 bool fresh) {
    sync_block();
    Head(c, {head, first, queries, keys, {}, {}, {}, {}, {}}, backward, Again{}).stage(slab, fresh);
    sync_block();
  }
  // Calls f(slab) in all threads, for each slab when it is in shared memory.
  template <class F> FWP_DEVICE void for_slabs(F f) {
    if constexpr (several) {
      FWP_ROLLED for (int slab = 0; slab < slabs; ++slab) {
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
  // offsets, which are not rolled. Of `parts` callers each takes its part of them.
  template <class F> FWP_DEVICE void for_features(F f, int part = 0, int parts = 1) const {
    if (K != Kind::favor && c.nu) {
      FWP_ROLLED for (int j = 1; j <= c.nu; ++j)
        FWP_ROLLED for (int i = 16 * part; i < base_rows; i += 16 * parts) f(std::true_type{}, j, i);
    } else {
      FWP_ROLLED for (int i = 16 * part; i < base_rows; i += 16 * parts) f(std::false_type{}, 0, i);
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

  // ---- the next segment ----

  // Prefetches the inputs of `next`, or the features that it takes of both sides, and its columns of values from `column` on.
  FWP_DEVICE static void fetch(const Call& c, const Segment& next, int column) {
    const int size = sizeof(typename P::Element), i = thread_index() % LT, line = 128;
    const auto ask = [&](const auto& rows, int first, int width) {
      const char* at = static_cast<const char*>(rows.data) +
                       size * (next.head / c.heads * rows.batch + (next.first + i) * rows.time +
                               next.head % c.heads * rows.head + first);
      for (int d = 0; d < size * width; d += line) prefetch(at + d);
    };
    const bool staged = next.taken == Sides::none;
    FWP_UNROLL for (bool keys : {false, true})
      if (next.taken == Sides::both && takes(next, keys)) Base::fetch_features(c, next, keys);
    if (thread_index() < LT) {
      if (staged && i < next.queries) ask(c.q, 0, c.d_key);
    } else if (thread_index() < 2 * LT && i < next.keys) {
      if (staged) ask(c.k, 0, c.d_key);
      ask(c.v, column, c.d_value - column < COLUMNS ? c.d_value - column : COLUMNS);
    }
  }
};

}  // namespace fwp::gpu
