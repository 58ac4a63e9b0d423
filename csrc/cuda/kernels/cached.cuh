// Where a hypothesis finds the positions that it decodes from, and what it finds there. Shared by decode.cuh and
// fold.cuh; the cache is described in fwp_fairseq/ops/decoding.py.
#pragma once

#include "decode_call.h"
#include "maps.cuh"
#include "numbers.cuh"
#include "operands.cuh"

namespace fwp::gpu {

constexpr int decode_warps = 4, decode_threads = 32 * decode_warps;
constexpr int column_block = 64;  // columns of values that a block of threads serves

FWP_BOTH int column_blocks(const DecodeCall& c) { return (c.d_value + column_block - 1) / column_block; }

// The row of storage of position p of row `row`, head h. Positions that this call writes are in the row itself; a table
// entry outside of the storage stops the kernel.
FWP_DEVICE int64_t place_of(const DecodeCall& c, int row, int h, int p) {
  int at = row;
  if (p < c.count) at = c.ancestors ? c.ancestors[row * c.ancestors_ld + p] : c.state_rows[row];
  require(at >= 0 && at < c.stored, "a table names a row outside of storage");
  return (int64_t(p) * c.stored + at) * c.heads + h;
}
// The row of W (times d_dot d_value) and z (times d_dot) that `row` reads.
FWP_DEVICE int64_t state_of(const DecodeCall& c, int row, int h) {
  const int at = c.state_rows[row];
  require(at >= 0 && at < c.states, "a table names a row outside of the states");
  return int64_t(at) * c.heads + h;
}

// Base features of a cached position. With offsets they are r = relu([x, -x]) of its key, from which the features are
// phi_{j,i} = r_i r_{i-j} (indices modulo base_width); without, they are the features themselves.
FWP_BOTH int base_width(const DecodeCall& c) { return has_offsets(c.map) ? 2 * c.d_cached : c.d_dot; }
template <class P> FWP_DEVICE float base_feature(const DecodeCall& c, int64_t place, int i) {
  if (!has_offsets(c.map)) return P::load(c.type, c.keys, place * c.d_cached + i);
  const bool second = i >= c.d_cached;
  const float x = P::load(c.type, c.keys, place * c.d_cached + (second ? i - c.d_cached : i)), y = second ? -x : x;
  return y < 0 ? 0.f : y;
}

// COUNT neighbouring numbers of a row, in the format that they have in memory.
template <class P, int COUNT> struct Numbers;
template <int COUNT> struct alignas(2 * COUNT) Numbers<Half, COUNT> {
  uint32_t words[COUNT / 2];

  FWP_DEVICE void clear() {
    FWP_UNROLL for (int i = 0; i < COUNT / 2; ++i) words[i] = 0;
  }
  FWP_DEVICE void load(const void* from, int64_t at) {
    *this = *reinterpret_cast<const Numbers*>(static_cast<const uint16_t*>(from) + at);
  }
  FWP_DEVICE void load_one(int i, const void* from, int64_t at, bool negated) {
    const uint32_t x = static_cast<const uint16_t*>(from)[at] ^ (negated ? 0x8000 : 0);
    words[i / 2] |= x << 16 * (i % 2);
  }
  FWP_DEVICE void read(Type type, float (&x)[COUNT]) const {
    FWP_UNROLL for (int i = 0; i < COUNT; ++i) {
      const uint16_t y = uint16_t(words[i / 2] >> 16 * (i % 2));
      x[i] = type == Type::float16 ? from_half(y) : from_bfloat16(y);
    }
  }
  // Stores numbers in shared memory as operands of products.
  static FWP_DEVICE void share(const float (&x)[COUNT], bool relu, uint16_t* to) {
    Numbers y;
    FWP_UNROLL for (int i = 0; i < COUNT / 2; ++i) {
      const uint32_t pair = pack_halves(x[2 * i], x[2 * i + 1]);
      y.words[i] = relu ? relu_halves(pair) : pair;
    }
    *reinterpret_cast<Numbers*>(to) = y;
  }
};
template <int COUNT> struct alignas(16) Numbers<Single, COUNT> {
  float x[COUNT];

  FWP_DEVICE void clear() {
    FWP_UNROLL for (int i = 0; i < COUNT; ++i) x[i] = 0;
  }
  FWP_DEVICE void load(const void* from, int64_t at) {
    *this = *reinterpret_cast<const Numbers*>(static_cast<const float*>(from) + at);
  }
  FWP_DEVICE void load_one(int i, const void* from, int64_t at, bool negated) {
    const float y = static_cast<const float*>(from)[at];
    x[i] = negated ? -y : y;
  }
  FWP_DEVICE void read(Type, float (&y)[COUNT]) const {
    FWP_UNROLL for (int i = 0; i < COUNT; ++i) y[i] = x[i];
  }
  static FWP_DEVICE void share(const float (&x)[COUNT], bool relu, float* to) {
    Numbers y;
    FWP_UNROLL for (int i = 0; i < COUNT; ++i) y.x[i] = relu && x[i] < 0 ? 0.f : x[i];
    *reinterpret_cast<Numbers*>(to) = y;
  }
};

}  // namespace fwp::gpu
