// What one block holds of a (batch row, head): the features of a segment of at most LT queries and keys.
//
// A warp owns the queries and the keys row .. row + 15.
//
// Features lie in shared memory as *base* rows, feature-major: base[feature][token]. One layout thus gives operands
// along features (transposed loads) and along tokens (plain loads), and a rolled row is just another row. For maps with
// offsets the base is r = relu([x, -x]), and phi_{j,i} = r_i r_{i-j} is multiplied when the operand is loaded. For the
// other maps it is phi itself, in slabs of at most 128 rows that are staged one after the other. Base rows are scaled
// by a power of two per token (`unit`: true base = unit x base), so that fp16 holds them whatever the inputs' size.
// `scale` turns the stored phi into the feature that the rule sees; it is 0 for padding and behind the end.
#pragma once

#include <initializer_list>
#include <type_traits>

#include "layout.cuh"
#include "operands.cuh"

namespace fwp::gpu {

constexpr int inputs_at_once = 64;  // how many inputs of a token are loaded at once
constexpr int value_block = 64;  // columns of values worked on at a time; forwards with a state: slice_columns

FWP_BOTH int value_blocks(const Call& c) { return (c.d_value + value_block - 1) / value_block; }

// Rows of values in shared memory are this many floats apart: 4 modulo 32, so that the operands' loads meet no bank twice.
template <int COLUMNS> FWP_BOTH int value_stride(const Call& c, bool backward) {
  return (backward ? value_blocks(c) * value_block : COLUMNS) + 4;
}

template <class P, int LT, Kind K, int COLUMNS = value_block, int TEAMS = 1> struct Shared {
  static constexpr int ld = LT + P::padding, raw_ld = inputs_at_once + P::padding;  // of base rows; of inputs
  typename P::Element *queries, *keys;        // [-nu .. base_end][ld]
  float *E, *Z, *dN;                           // [LT][value_stride]; Z, dN: backward only. E: see lay
  float* square;                              // [LT / 16][16][17]: diagonal blocks: of the system, or of decay.cuh
  float *unit_q, *unit_k, *scale_q, *scale_k;  // [LT] each, as all that follow
  float *beta, *read_rate, *written;          // see forward.cuh; read_rate there: decaying keys' weights in z
  float *gradient_den, *gradient_seen, *shift_q, *shift_k;  // backward only
  int* last_key;                              // [LT / 16]
  int* present;                               // [LT]: keys that are not padding
  typename P::Element* raw;                   // [TEAMS][LT][raw_ld]: inputs on their way to base rows. See lay

  // Divides the memory at `base` and returns the bytes used. What is never needed together shares a place: if features are
  // staged only once, inputs being loaded and in a forward the diagonal blocks, in a backward E, Z and dN; features and E, in
  // a forward without a state.
  FWP_BOTH int lay(char* base, const Call& c, bool backward) {
    int used = 0, end = 0;
    const auto take = [&](auto*& pointer, int count) {
      pointer = reinterpret_cast<std::remove_reference_t<decltype(pointer)>>(base + used);
      used = round_up(used + count * int(sizeof *pointer), 16);
    };
    // Arrays of the same size in every call come first: their addresses are constants and take no registers.
    take(square, LT / 16 * 16 * 17);
    const bool raw_is_late = backward && K != Kind::general;
    if (!raw_is_late) {
      if (K != Kind::general) end = used, used = 0;
      take(raw, TEAMS * LT * raw_ld);
      if (end > used) used = end;
    }
    for (float** each : {&unit_q, &unit_k, &scale_q, &scale_k, &beta, &read_rate, &written}) take(*each, LT);
    take(last_key, LT / 16);
    take(present, LT);
    if (backward)
      for (float** each : {&gradient_den, &gradient_seen, &shift_q, &shift_k}) take(*each, LT);
    const int features = used;
    for (typename P::Element** each : {&queries, &keys}) {
      take(*each, (c.nu + c.base_end) * ld);
      *each += c.nu * ld;
    }
    end = used;
    if (!has_states<K> && !backward) used = features;
    if (raw_is_late) {
      const int first = used;
      take(raw, TEAMS * LT * raw_ld);
      end = used, used = first;
    }
    for (float** each : {&E, &Z, &dN})
      if (backward || each == &E) take(*each, LT * value_stride<COLUMNS>(c, backward));
    return end > used ? end : used;
  }
};

}  // namespace fwp::gpu
