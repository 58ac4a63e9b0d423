// The state of each row after the positions of the block: W = W0 + sum_j phi(k_j) u_j^T, z = z0 + sum_j phi(k_j), with
// W0, z0 of the row that the table names. Under the gated rule k_j is multiplied by beta_j and all later 1 - beta, W0 and
// z0 by the product of every 1 - beta; under the gated delta rule these are all later alpha, and every alpha. A block of threads computes 64 features x 64 columns of a (row, head), a
// thread 4 x 8 of them, from 16 positions at a time in shared memory. Sums are in float.
#pragma once

#include <type_traits>

#include "cached.cuh"

namespace fwp::gpu {

constexpr int fold_features = 64, fold_positions = 16;

struct FoldShared {
  float phi[fold_positions][fold_features], u[fold_positions][column_block];
  float left[fold_positions + 1];  // decaying: what is left of each position after the last of them, and of what was before
};

template <class P> struct Folder {
  const DecodeCall& c;
  FoldShared& s;
  const int thread;
  int row, h, first_feature, first_column, feature, column;  // of the block; of this thread

  FWP_DEVICE explicit Folder(const DecodeCall& call)
      : c(call), s(*reinterpret_cast<FoldShared*>(shared_memory(sizeof(FoldShared)))), thread(thread_index()) {
    int index = block_index();
    first_column = index % column_blocks(c) * column_block;
    index /= column_blocks(c);
    const int blocks = (c.d_dot + fold_features - 1) / fold_features;
    first_feature = index % blocks * fold_features;
    index /= blocks;
    h = index % c.heads;
    row = index / c.heads;
    feature = thread / 8 * 4;
    column = thread % 8 * 8;
  }

  FWP_DEVICE void run() const {
    float W[4][8] = {}, z[4] = {}, left = 1;
    FWP_ROLLED for (int first = 0; first < c.count; first += fold_positions) {
      load(first);
      sync_block();
      if (c.strengths) {
        const float by = s.left[fold_positions];
        left *= by;
        FWP_UNROLL for (int i = 0; i < 4; ++i) {
          z[i] *= by;
          FWP_UNROLL for (int e = 0; e < 8; ++e) W[i][e] *= by;
        }
      }
#pragma unroll 4
      for (int p = 0; p < fold_positions; ++p)
        FWP_UNROLL for (int i = 0; i < 4; ++i) {
          const float phi = c.strengths ? s.phi[p][feature + i] * s.left[p] : s.phi[p][feature + i];
          z[i] += phi;
          FWP_UNROLL for (int e = 0; e < 8; ++e) W[i][e] += phi * s.u[p][column + e];
        }
      sync_block();
    }
    const int64_t from = c.W ? state_of(c, row, h) * c.d_dot : 0, to = (int64_t(row) * c.heads + h) * c.d_dot;
    FWP_UNROLL for (int i = 0; i < 4; ++i) {
      const int f = first_feature + feature + i;
      if (f >= c.d_dot) continue;
      FWP_UNROLL for (int e = 0; e < 8; ++e) {
        const int j = first_column + column + e;
        if (j < c.d_value) c.new_W[(to + f) * c.d_value + j] = W[i][e] + (c.W ? left * c.W[(from + f) * c.d_value + j] : 0.f);
      }
      if (c.new_z && first_column + column == 0) c.new_z[to + f] = z[i] + (c.z ? left * c.z[from + f] : 0.f);
    }
  }

  FWP_DEVICE float strength(int p) const { return c.strengths[place_of(c, row, h, p)]; }
  // What a position adds, and what it leaves of earlier ones.
  FWP_DEVICE float added(int p) const { return p >= c.count ? 0.f : c.rule == Rule::gated ? strength(p) : 1.f; }
  FWP_DEVICE float keep(int p) const { return p >= c.count ? 1.f : c.rule == Rule::gated ? 1 - strength(p) : strength(p); }
  FWP_DEVICE void load(int first) const {
    if (c.strengths && thread <= fold_positions) {
      const bool before = thread == fold_positions;
      float left = before ? 1.f : added(first + thread);
      FWP_ROLLED for (int p = before ? 0 : thread + 1; p < fold_positions; ++p) left *= keep(first + p);
      s.left[thread] = left;
    }
    const int width = base_width(c);
    FWP_ROLLED for (int i = thread; i < fold_positions * fold_features; i += decode_threads) {
      const int p = first + i / fold_features, f = first_feature + i % fold_features;
      float phi = 0;
      if (p < c.count && f < c.d_dot) {
        const int64_t place = place_of(c, row, h, p);
        const int base = f % width, j = f / width + 1;
        phi = base_feature<P>(c, place, base);
        if (has_offsets(c.map)) phi *= base_feature<P>(c, place, base < j ? base - j + width : base - j);
      }
      s.phi[i / fold_features][i % fold_features] = phi;
    }
    FWP_ROLLED for (int i = thread; i < fold_positions * column_block; i += decode_threads) {
      const int p = first + i / column_block, j = first_column + i % column_block;
      const bool there = p < c.count && j < c.d_value;
      s.u[i / column_block][i % column_block] =
          there ? P::load(c.type, c.written, place_of(c, row, h, p) * c.d_value + j) : 0.f;
    }
  }
};

template <class P> FWP_KERNEL(decode_threads, 1) fold_kernel(FWP_CONSTANT DecodeCall c) { Folder<P>(c).run(); }

template <class P> const char* launch_fold(const DecodeCall& c, void* stream) {
  const int blocks = c.rows * c.heads * ((c.d_dot + fold_features - 1) / fold_features) * column_blocks(c);
  return launch(fold_kernel<P>, blocks, decode_threads, int(sizeof(FoldShared)), static_cast<Stream>(stream), c);
}

}  // namespace fwp::gpu

// Used by the sources in instances/, which include decode.cuh too.
#define FWP_INSTANCES_OF_DECODE(P)                                                             \
  template int fwp::gpu::decode_bytes_of<fwp::gpu::P>(const fwp::gpu::DecodeCall&);             \
  template const char* fwp::gpu::launch_decode<fwp::gpu::P>(const fwp::gpu::DecodeCall&, void*); \
  template const char* fwp::gpu::launch_fold<fwp::gpu::P>(const fwp::gpu::DecodeCall&, void*);
