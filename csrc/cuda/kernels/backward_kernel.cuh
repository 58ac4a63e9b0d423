// The backward's last or only kernel, of a piece or of a call of one segment, and its launch.
#pragma once

#include <type_traits>

#include "backward_teams.cuh"
#include "pieces.cuh"

namespace fwp::gpu {

// How many blocks of two teams a multiprocessor is to hold: as many as shared memory permits, at 128 registers a thread.
template <class P, int LT, Rule RULE, Kind K>
constexpr int backwards_at_once = P::scaled && backward_teams<LT, RULE, K> == 2 ? 128 / LT : 1;

template <class P, int LT, Rule RULE, Kind K>
FWP_KERNEL((2 * LT * backward_teams<LT, RULE, K>), (backwards_at_once<P, LT, RULE, K>)) backward_kernel(FWP_CONSTANT Pieces c) {
  if constexpr (has_states<K>) {
    const int count = pieces_of(c, LT), head = block_index() / count, n = block_index() % count;
    add_up_z(c, LT, head, n, 2 * LT);
    sync_block();
    Backward<P, LT, RULE, K>(c, piece(c, LT, head, n)).run();
  } else {
    using Own = std::conditional_t<backward_teams<LT, RULE, K> == 2, BackwardTeams<P, LT, RULE, K>, Backward<P, LT, RULE, K>>;
    Own(c, whole(c, block_index())).run();
  }
}

template <class P, Rule RULE, Kind K> const char* launch_backward(const Pieces& c, void* stream) {
  return with_tokens(c, [&](auto tokens) {
    constexpr int LT = decltype(tokens)::count;
    if constexpr (!exists(LT, RULE, K, true)) {
      return "no instance";  // with_tokens never asks for it
    } else {
      const auto kernel = backward_kernel<P, LT, RULE, K>;
      const int blocks = c.batch * c.heads * (has_states<K> ? pieces_of(c, LT) : 1);
      return launch(kernel, blocks, 2 * LT * backward_teams<LT, RULE, K>, bytes_of<P>(c, true), static_cast<Stream>(stream), c);
    }
  });
}

}  // namespace fwp::gpu

// Used by the sources in instances/.
#define FWP_INSTANCE_OF_BACKWARD(P, RULE, KIND)                                                        \
  template const char* fwp::gpu::launch_backward<fwp::gpu::P, fwp::Rule::RULE, fwp::gpu::Kind::KIND>( \
      const fwp::gpu::Pieces&, void*);
