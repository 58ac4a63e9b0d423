// For how many tokens a call has blocks, and how much shared memory a block needs.
#pragma once

#include "decay.cuh"

namespace fwp::gpu {

// Calls f(Tokens<LT>) with the smallest block of tokens that holds the call.
template <int LT> struct Tokens {
  static constexpr int count = LT;
};
template <class F> auto with_tokens(const Call& c, F f) {
  int longest = c.targets > c.sources ? c.targets : c.sources;
  if (longest > c.segment) longest = c.segment;
  if (serves_states(kind_of(c)) && longest < short_segment) longest = short_segment;  // fewer instances
  if (longest <= 16) return f(Tokens<16>{});
  if (longest <= 32) return f(Tokens<32>{});
  if (longest <= 64) return f(Tokens<64>{});
  return f(Tokens<longest_segment>{});
}
template <class P> int bytes_of(const Call& c, bool backward) {
  return with_tokens(c, [&](auto tokens) {
    constexpr int LT = decltype(tokens)::count;
    const auto bytes = [&](auto shared) { return shared.lay(nullptr, c, backward) + decay_bytes<LT>(c.rule, backward); };
    switch (kind_of(c)) {
      case Kind::plain:
        if (backward && backward_teams_of(LT, c.rule, Kind::plain) == 2) return bytes(Shared<P, LT, Kind::plain, value_block, 2>());
        return bytes(Shared<P, LT, Kind::plain>());
      case Kind::favor: return bytes(Shared<P, LT, Kind::favor>());
      case Kind::state:
        if (backward) return bytes(Shared<P, LT, Kind::state>());
        return bytes(Shared<P, LT, Kind::state, slice_columns, forward_teams<Kind::state>>()) + state_bytes(c);
      default:
        if (backward) return bytes(Shared<P, LT, Kind::general>());
        return bytes(Shared<P, LT, Kind::general, slice_columns>()) + state_bytes(c);
    }
  });
}

}  // namespace fwp::gpu
