// The launches of a forward in pieces (launch_forward.h): the keys' features and scales and for rules that correct T, of all
// segments at the same time; the walk over the keys, which leaves the state after each segment, and E; the outputs of all
// segments at the same time. Equations: forward.cuh.
#pragma once

#include "forward.cuh"

namespace fwp::gpu {

template <class P, int LT, Rule RULE, Kind K> FWP_KERNEL(2 * LT, 1) keys_kernel(FWP_CONSTANT Call c) {
  const int count = key_segments(c, LT), head = block_index() / count, n = block_index() % count;
  Segment p = segment(c, LT, head, n);
  p.queries = 0;
  Forward<P, LT, RULE, K, Columns<const float>, Columns<float>, 1, Part::keys>(c, p, 0, {}, {}).note_keys();
}

// A call of keys alone. The last state may not be wanted.
template <class P, int LT, Rule RULE, Kind K> FWP_KERNEL(4 * LT, 1) write_kernel(FWP_CONSTANT Call c) {
  using Own = Forward<P, LT, RULE, K, Resident, Resident, 2, Part::writing>;
  const int used = Shared<P, LT, K, slice_columns, 2>().lay(nullptr, c, false) + decay_bytes<LT>(RULE, false);
  const int head = block_index() / slices(c), column = block_index() % slices(c) * slice_columns;
  const int count = key_segments(c, LT), last = count - 1, end = Own::DELTA || leaves(c, LT, last) ? count : last;
  const Resident state(c, shared_memory(used + state_bytes(c)) + used);
  state.load(c, slice_of<const float>(c, {c.initial_W, c.initial_z}, head, column), 4 * LT);
  const auto begun = [&](int n) {
    Segment p = segment(c, LT, head, n);
    if (!leaves(c, LT, n)) p.after = {};
    p.taken = Sides::keys;
    Own::begin(c, p);
    return p;
  };
  Segment p = begun(0);
  FWP_ROLLED for (int n = 0; n < end; ++n) {
    Own own(c, p, column, state.only_if(n || c.initial_W), state.only_if(n < last || p.after.W));
    if (n + 1 < end) {
      p = begun(n + 1);
      Own::fetch(c, p, column);
    }
    own.run_in_teams();
    sync_block();  // before shared memory is overwritten and the state read
  }
}

// Half operands leave room for two of its blocks on a multiprocessor.
template <class P, int LT, Rule RULE, Kind K> FWP_KERNEL(4 * LT, (P::scaled ? 2 : 1)) read_kernel(FWP_CONSTANT Call c) {
  using Own = Forward<P, LT, RULE, K, Resident, Resident, 2, Part::reading>;
  const int used = Shared<P, LT, K, slice_columns, 2>().lay(nullptr, c, false) + decay_bytes<LT>(RULE, false);
  const int count = segments(c, LT), n = block_index() % count, slice = block_index() / count;
  const int head = slice / slices(c), column = slice % slices(c) * slice_columns;
  const Segment p = segment(c, LT, head, n);
  const Resident state(c, shared_memory(used + state_bytes(c)) + used);
  state.load(c, slice_of(c, p.before, head, column), 4 * LT);
  Own(c, p, column, state.only_if(p.before.W), state.only_if(false)).run_in_teams();
}

// Bytes of shared memory: walk and outputs need those of a forward.
template <class P, int LT, Kind K> int keys_bytes_of(const Call& c) {
  return Shared<P, LT, K, LT>().lay(nullptr, c, false) + decay_bytes<LT>(c.rule, false);
}
template <class P, Rule RULE, Kind K> const char* launch_keys(const Call& c, void* stream) {
  constexpr int LT = short_segment;
  return launch(keys_kernel<P, LT, RULE, K>, c.batch * c.heads * key_segments(c, LT), 2 * LT, keys_bytes_of<P, LT, K>(c),
                static_cast<Stream>(stream), c);
}
template <class P, Rule RULE, Kind K> const char* launch_write(const Call& c, void* stream) {
  constexpr int LT = short_segment;
  return launch(write_kernel<P, LT, RULE, K>, c.batch * c.heads * slices(c), 4 * LT, bytes_of<P>(c, false),
                static_cast<Stream>(stream), c);
}
template <class P, Rule RULE, Kind K> const char* launch_read(const Call& c, void* stream) {
  constexpr int LT = short_segment;
  return launch(read_kernel<P, LT, RULE, K>, c.batch * c.heads * slices(c) * segments(c, LT), 4 * LT, bytes_of<P>(c, false),
                static_cast<Stream>(stream), c);
}

}  // namespace fwp::gpu

// Used by the sources in instances/.
#define FWP_INSTANCE_OF_PIECE(WHAT, P, RULE, KIND)                                                         \
  template const char* fwp::gpu::launch_##WHAT<fwp::gpu::P, fwp::Rule::RULE, fwp::gpu::Kind::KIND>( \
      const fwp::gpu::Call&, void*);
#define FWP_INSTANCE_OF_PIECES(P, RULE, KIND) \
  FWP_INSTANCE_OF_PIECE(keys, P, RULE, KIND) FWP_INSTANCE_OF_PIECE(write, P, RULE, KIND) FWP_INSTANCE_OF_PIECE(read, P, RULE, KIND)
