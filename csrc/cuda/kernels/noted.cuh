// Features in memory. A walk from segment to segment has no time to make any, so it takes what launches for all segments at
// the same time have left: keys_kernel (forward_pieces.cuh) the keys', preparation_kernel those that the walk back takes
// besides. Of a segment they are the base rows as they stand in shared memory, without the padding behind each.
#pragma once

#include "staging.cuh"

namespace fwp::gpu {

template <class P, int LT, Kind K, int COLUMNS = value_block, int TEAMS = 1>
struct Noted : Staging<P, LT, K, COLUMNS, TEAMS> {
  using Base = Staging<P, LT, K, COLUMNS, TEAMS>;
  using Base::Base;
  using Base::c, Base::here, Base::ld, Base::load_key, Base::s, Base::vector;
  using typename Base::Element;

  // The number of a segment, of keys or of queries, among those of all heads.
  static FWP_DEVICE int64_t number(const Call& c, const Segment& p, bool keys) {
    return int64_t(p.head) * (keys ? key_segments(c, LT) : segments_of(c.targets, LT)) + p.first / LT;
  }
  static FWP_DEVICE Vector* noted_features(const Call& c, const Segment& p, bool keys) {
    return reinterpret_cast<Vector*>(keys ? c.features_k : c.features_q) + number(c, p, keys) * c.feature_vectors;
  }
  FWP_DEVICE void note_features(bool keys) const {
    for_vectors(s, c, here, keys, [](Vector* own, Vector* noted) { *noted = *own; });
  }
  // Starts to load what a segment takes of its tokens: features, which are there after copies_arrived and a barrier, and the
  // thread's key.
  static FWP_DEVICE void begin(const Call& c, Segment& p) {
    Shared<P, LT, K, COLUMNS, TEAMS> s;
    Base::lay(s, c, p, false);
    p.key = load_key(c, p);
    FWP_UNROLL for (bool keys : {false, true})
      if (takes(p, keys)) for_vectors(s, c, p, keys, [](Vector* own, Vector* noted) { start_copy(own, noted); });
  }
  static FWP_DEVICE void fetch_features(const Call& c, const Segment& next, bool keys) {
    constexpr int a_line = 128 / sizeof(Vector);
    for (int i = thread_index() * a_line; i < c.feature_vectors; i += 2 * LT * TEAMS * a_line)
      prefetch(noted_features(c, next, keys) + i);
  }

 private:
  // Calls f(place in shared memory, place in memory) for every 16 bytes.
  template <class F>
  static FWP_DEVICE void for_vectors(const Shared<P, LT, K, COLUMNS, TEAMS>& s, const Call& c, const Segment& p, bool keys,
                                     F f) {
    constexpr int a_row = LT / vector;
    Element* own = (keys ? s.keys : s.queries) - c.nu * ld;
    Vector* noted = noted_features(c, p, keys);
    FWP_ROLLED for (int i = thread_index(); i < c.feature_vectors; i += 2 * LT * TEAMS)
      f(reinterpret_cast<Vector*>(own + i / a_row * ld + i % a_row * vector), noted + i);
  }
};

}  // namespace fwp::gpu
