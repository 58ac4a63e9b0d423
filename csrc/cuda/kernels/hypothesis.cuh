// The row and head that a block of threads decodes: addresses of positions, their weights, and the shared memory of a
// step.
#pragma once

#include "decode_features.cuh"
#include "tokens.cuh"

namespace fwp::gpu {

constexpr int decode_threads = 128, decode_warps = decode_threads / 32, column_block = 64;
constexpr int decode_parts = decode_threads / column_block;  // of the positions, for each column
// Dense keys in shared memory, under DPFP preceded by the numbers before x_0 (dpfp.cuh).
constexpr int dense_width = column_block, dense_before = 8, dense_ld = dense_before + dense_width;

FWP_BOTH bool is_dense(const DecodeCall& c) {
  const bool aligned = (reinterpret_cast<uintptr_t>(c.keys) | reinterpret_cast<uintptr_t>(c.written)) % 16 == 0;
  const bool known = c.map == Map::dpfp ? c.nu <= dense_before : c.d_dot == dense_width;
  return known && aligned && c.x_type != Type::float32 && c.type != Type::float32 && c.d_cached == dense_width &&
         c.d_value == dense_width;
}

struct Hypothesis : Lanes {
  const DecodeCall& c;
  int row, h;
  const int thread = thread_index(), warp = warp_index();

  FWP_DEVICE Hypothesis(const DecodeCall& call, int index) : c(call), row(index / call.heads), h(index % call.heads) {}

  // The row of storage of position p. Positions that this call writes are stored in `row`. A table entry outside the
  // storage stops the kernel.
  FWP_DEVICE int stored_at(int p) const {
    int at = row;
    if (p < c.count) at = c.ancestors ? c.ancestors[row * c.ancestors_ld + p] : c.state_rows[row];
    require(at >= 0 && at < c.stored, "a table names a row outside of storage");
    return at;
  }
  // The index of position p in row `at` of storage, and the offset of its numbers.
  FWP_DEVICE int storage(int p, int at) const { return p * c.stored + at; }
  FWP_DEVICE int64_t place(int storage) const { return int64_t(storage) * c.heads + h; }
  FWP_DEVICE int64_t state() const {
    const int at = c.state_rows[row];
    require(at >= 0 && at < c.states, "a table names a row outside of the states");
    return int64_t(at) * c.heads + h;
  }
  // Number d of a position in the cache of keys, which has features or, for a map with offsets (DPFP), the key itself.
  FWP_DEVICE float cached(int64_t place, int d) const { return load(c.x_type, c.keys, place * c.d_cached + d); }
  FWP_DEVICE float feature(int64_t place, int i) const {
    return c.map == Map::dpfp ? dpfp_feature([&](int d) { return cached(place, d); }, c.d_cached, i) : cached(place, i);
  }
  // Calls f(i, feature i) for all features, each in one lane.
  template <class F> FWP_DEVICE void each_feature(int64_t place, F f) const {
    const auto x = [&](int d) { return cached(place, d); };
    if (c.map != Map::dpfp) return each(c.d_dot, [&](int i) { f(i, x(i)); });
    each_dpfp_feature([&](int b) { return relu_of(x, c.d_cached, b); }, c.d_cached, c.nu, f);
  }
  FWP_DEVICE float written(int64_t place, int j) const { return load(c.type, c.written, place * c.d_value + j); }
  // Computes the rows of storage of the positions, and their weights w_j; weights[positions] is w, that of the state.
  // Run by all threads; the caller needs a barrier before reading them.
  FWP_DEVICE void weigh(float* weights, int* rows, int positions) const {
    FWP_ROLLED (int p = thread; p < positions; p += decode_threads) {
      rows[p] = storage(p, stored_at(p));
      weights[p] = c.strengths ? c.strengths[place(rows[p])] : 1.f;
    }
    sync_block();
    if (thread > 0) return;
    float left = 1;
    FWP_ROLLED (int p = positions - 1; p >= 0 && c.strengths; --p) {
      const float gate = weights[p];
      weights[p] = weighs_writes(c.rule) ? gate * left : left;
      left *= keep_of_stored(c.rule, gate);
    }
    weights[positions] = left;
  }
};

// Shared memory of a step; `most` is the number of positions after it, with dense rows rounded up to tiles.
struct DecodeShared {
  float *x, *phi;  // [2][2 d_key], [2][d_dot]: of the query and of the key
  float* weights;  // [most + 1]
  int* rows;  // [most]: of storage
  float *a, *b;  // [most]
  float* sums;  // [decode_warps][4]
  float* parts;  // [2][decode_parts][column_block]
  // For dense rows, in whole tiles of positions: the token's features, keys, values, partial sums, and the factors of
  // the features.
  uint16_t *operand, *keys, *values;  // [2][d_dot], [most][dense_ld], [most][dense_width]
  float *dense, *powers;  // [2][decode_warps][column_block], [2]

  FWP_BOTH int lay(float* base, const DecodeCall& c) {
    const bool dense_rows = is_dense(c);
    const int positions = c.count + (c.k.data ? c.tokens : 0), most = dense_rows ? round_up(positions, 16) : positions;
    int used = 0;
    const auto take = [&](auto*& pointer, int count) {
      pointer = reinterpret_cast<std::remove_reference_t<decltype(pointer)>>(base + used);
      used += count;
    };
    take(phi, 2 * c.d_dot);  // first, because what is copied 16 bytes at a time has to be aligned
    if (dense_rows) {
      take(operand, c.d_dot);
      take(keys, most * dense_ld / 2);
      take(values, most * dense_width / 2);
      take(dense, 2 * decode_warps * column_block);
      take(powers, 2);
    }
    take(x, 2 * 2 * c.d_key);
    take(weights, most + 1);
    take(rows, most);
    take(a, most);
    take(b, most);
    take(sums, 4 * decode_warps);
    take(parts, 2 * decode_parts * column_block);
    return 4 * used;
  }
};

}  // namespace fwp::gpu
