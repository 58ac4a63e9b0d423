// How a call is cut into chunks, and its scratch into arrays.
#pragma once

#include "instruction_set.h"

#include "simd.h"

namespace fwp::FWP_NAMESPACE {
namespace {

// A token costs less in short chunks, whose triangles are small, but each chunk reads and writes the state. 48 and 64
// are slower than 32 for heads of width 16 to 64 and d_dot of 16 to 512.
constexpr idx longest_chunk = 128, short_chunk = 32;
// Up to this length, features are computed in groups of feature_group, which stay in the first-level cache.
constexpr idx longest_grouped = 64;
constexpr idx feature_group = 64;

// The sizes that a call determines.
template <class T> struct Plan {
  idx chunk, chunks, tile;  // source positions per chunk; number of chunks; targets that read together
  idx rows;  // of a chunk or a tile, the longer one, rounded up to whole vectors
  idx narrow, wide;
  bool causal, reads_state;  // reads_state: targets read the final state, not the Gram matrix of each chunk
  bool writes_state;  // the state after the last chunk is needed
  bool lone_z;  // z is alone in its vector of wide rows

  explicit Plan(const Call<T>& c) {
    constexpr idx lanes = width<T>;
    causal = c.causal;
    narrow = round_up(c.d_value, lanes);
    wide = round_up(c.d_value + (c.normalize_output ? 1 : 0), lanes);
    lone_z = c.normalize_output && narrow == c.d_value;
    chunk = c.sources <= longest_chunk ? c.sources : short_chunk;
    chunks = c.sources <= longest_chunk ? 1 : (c.sources + chunk - 1) / chunk;
    const bool given = c.W != nullptr;
    const idx gram = c.targets * c.sources * (c.d_dot + c.d_value);
    const idx state = (c.targets + (given ? 0 : c.sources)) * c.d_dot * c.d_value;
    reads_state = !causal && (chunks > 1 || gram > state);
    writes_state = given || reads_state;
    tile = causal ? chunk : (c.targets < longest_chunk ? c.targets : longest_chunk);
    rows = round_up(chunk > tile ? chunk : tile, lanes);
  }
};

// Divides the scratch into arrays; without a scratch, counts how large it has to be. Arrays start at whole cache lines
// with one line between them: if they were a multiple of 4096 bytes apart, loads would wait for stores of equal low
// address bits.
template <class T> struct Arena {
  T* base;
  std::size_t used = 0;

  T* take(idx count) {
    T* array = base ? base + used : nullptr;
    const idx line = 64 / idx(sizeof(T));
    used += round_up(count, line) + line;
    return array;
  }
  template <class U> U* take_as(idx count) {
    return reinterpret_cast<U*>(take(round_up(count * idx(sizeof(U)), sizeof(T)) / idx(sizeof(T))));
  }
};

}  // namespace
}  // namespace fwp::FWP_NAMESPACE
