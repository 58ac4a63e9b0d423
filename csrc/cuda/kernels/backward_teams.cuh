// The backward of a call without a state by two teams of warps: one has the queries, the other the keys. Equations:
// backward.cuh. Shared memory lets only few blocks of a short call live on a multiprocessor, so teams give it twice the
// warps. Queries wait for E, keys then for dN and dden; from there on neither needs the other.
#pragma once

#include "backward.cuh"

namespace fwp::gpu {

template <class P, int LT, Rule RULE, Kind K> struct BackwardTeams : Backward<P, LT, RULE, K, 2> {
  using Base = Backward<P, LT, RULE, K, 2>;
  using Base::Base;
  using Base::c, Base::first_k, Base::keys, Base::last_q, Base::meet, Base::meet_keys, Base::queries, Base::s, Base::w,
      Base::DELTA, Base::DECAYS, Base::GATED;
  using typename Base::Strip, typename Base::KeyStrip;
  static_assert(!Base::states && !Base::has_room);

  FWP_DEVICE void run() {
    if (Base::team == 0) of_queries();
    else of_keys();
  }
  FWP_DEVICE void of_queries() {
    {
      Strip A;
      products(A, false, s.queries, s.keys, 0, last_q);
      meet();
      Base::read(A);
    }
    Base::store_query_gradient();
    if (GATED) meet();
  }
  FWP_DEVICE void of_keys() {
    if (DECAYS) Base::find_decay(thread_index() - 2 * LT);
    if constexpr (DELTA) {
      KeyStrip B;
      products(B, true, s.keys, s.keys, 0, w < keys ? keys : 0);
      meet();
      Base::solve_for_E(B);
      Base::pull(B);
    } else {
      Strip A;
      KeyStrip none;
      products(A, true, s.keys, s.queries, first_k, queries);
      meet();
      Base::solve_for_E(none);
      Base::pull(A, none);
    }
    meet_keys();
    Base::store_key_gradient();
    if constexpr (GATED) {
      Base::take_state();
      meet();
      Base::store_strength_gradient(keys, queries);
    }
  }
  // The strip of products of own stored features with those of `other`; sets the scales of own tokens.
  FWP_DEVICE void products(Strip& strip, bool is_key, const typename Base::Element* own, const typename Base::Element* other,
                           int first, int last) {
    float sum[4] = {};
    Base::clear(strip);
    Base::template gram<Base::together, true>(strip, sum, own, other, first, last, [](int, int, int) {}, [](auto&) {});
    Base::finish_scale(is_key, sum);
  }
};

}  // namespace fwp::gpu
