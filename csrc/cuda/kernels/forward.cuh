// Forward of one (batch row, head), up to LT queries and keys at a time: one launch, a warp for 16 tokens; one block a head,
// or with a state (state.cuh) one for every slice_columns columns of values, which carries these from piece to piece.
//
//     P = M o (Q K^T),  KK = stril(K K^T);  seen = KK 1 + K z0 + eps;  read_rate = 1 / seen, or 1 where not normalised
//     D = V - read_rate (KK beta D + K W0)                    delta: what is missing;  D = V  for the sum rule
//     N = P beta D + Q W0,  den = P 1 + Q z0 + eps;  out = N, or N / den
//     W = W0 + K^T beta D,  z = z0 + K^T 1
//
// Reads q, k, v (and the mask, beta, the initial state), writes out (and the state); nothing else goes to memory. The
// unit triangular system in D is solved by blocks of 16 tokens with the inverted diagonal blocks, LT / 16 barriers.
#pragma once

#include "head.cuh"

namespace fwp::gpu {

template <class P, int LT, bool DELTA, bool GENERAL>
struct Forward : Head<P, LT, GENERAL, GENERAL ? slice_columns : value_block> {
  static constexpr int columns = GENERAL ? slice_columns : value_block;
  using Base = Head<P, LT, GENERAL, columns>;
  using Base::c, Base::here, Base::s, Base::g, Base::t, Base::row, Base::stride, Base::tiles, Base::strip_tiles, Base::lane;
  using typename Base::Pair, typename Base::Strip, typename Base::Values;

  // With a state the values' columns are `columns` ones from `column` on, else all of them.
  const Columns<const float> before;
  const Columns<float> after;
  const int column;

  FWP_DEVICE Forward(const Call& call, const Piece& piece, int column, const Columns<const float>& before,
                     const Columns<float>& after)
      : Base(call, piece, false), before(before), after(after), column(column) {}

  // Features of own tokens times the state; the sums of 16 tokens with z in column 0.
  struct Read {
    Values W;
    float z[4];
  };

  // Own queries (and keys, for delta) with all keys and with the state, and the sums of own features.
  static constexpr int together = GENERAL ? 4 : 1;  // tiles of keys: blocks that walk are few, so warps wait for no other's
  FWP_DEVICE void grams(Strip& P_q, float (&P_k)[DELTA ? strip_tiles : 1][4], float (&sum_q)[4], float (&sum_k)[4],
                        Read& read_q, Read& read_k, int last_q, int last_k) {
    const Pair one = P::pair(1, 1);
    Base::for_slabs([&](int slab) {
      Base::for_features([&](int j, int i) {
        typename Base::Rows16 rows;
        if constexpr (GENERAL)
          if (before.W) Base::load_rows(rows, slab, j, i, before, 0);
        Pair own[2][4];  // query, key
        if (DELTA || c.normalize_features) Base::along_features(own, i, j, [&](int n) { return (n ? s.keys : s.queries) + row; });
        else Base::along_features(own[0], s.queries, i, row, j);
        if (c.normalize_features) {
          P::mma(sum_q, own[0], one, one);
          P::mma(sum_k, own[1], one, one);
        }
#pragma unroll
        for (int first = 0; first < tiles; first += together)
          if (first < last_q || (DELTA && first < last_k)) {
            Pair other[together][4];
            Base::along_features(other, i, j, [&](int n) { return s.keys + 16 * (first + n); });
#pragma unroll
            for (int n = 0; n < together; ++n) {
              const int m = first + n;
              if (m < last_q) {
                P::mma(P_q[2 * m], own[0], other[n][0], other[n][2]);
                P::mma(P_q[2 * m + 1], own[0], other[n][1], other[n][3]);
              }
              if constexpr (DELTA)
                if (m < last_k) {
                  P::mma(P_k[2 * m], own[1], other[n][0], other[n][2]);
                  P::mma(P_k[2 * m + 1], own[1], other[n][1], other[n][3]);
                }
            }
          }
        if constexpr (GENERAL)
          if (before.W) {
            if (last_q || here.queries) Base::add_rows(read_q.W, read_q.z, own[0], rows, before.z);
            if (DELTA && last_k) Base::add_rows(read_k.W, read_k.z, own[1], rows, before.z);
          }
      });
    });
  }

  FWP_DEVICE void run() {
    const int w = row / 16, keys = Base::source_tiles;
    const bool reads = w < Base::target_tiles, writes = w < keys;
    const int last_q = !reads ? 0 : c.causal && w + 1 < keys ? w + 1 : keys, last_k = writes ? w + 1 : 0;
    Strip A;
    float B[DELTA ? strip_tiles : 1][4];
    float sum_q[4] = {}, sum_k[4] = {};
    Base::clear(A);
    Base::clear(B);
    Read read_q{}, read_k{};
    grams(A, B, sum_q, sum_k, read_q, read_k, last_q, last_k);
    Base::finish_scales(sum_q, sum_k);
    sync_block();
    if (t == 0)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int i = row + g + 8 * r;
        s.written[i] = s.scale_k[i] * s.beta[i];
      }
    const float scale_q[2] = {s.scale_q[row + g], s.scale_q[row + g + 8]};
    const float scale_k[2] = {s.scale_k[row + g], s.scale_k[row + g + 8]};
    float den[2] = {}, seen[2] = {};
    Base::for_strip([&](int n, int i, int j) {
      const float scale = s.scale_k[j], beta = s.beta[j];
      const float x = c.causal && j > Base::row_of(i) ? 0.f : A[n][i] * (scale_q[i >> 1] * scale);
      den[i >> 1] += x;
      A[n][i] = x * beta;
      if constexpr (DELTA) {
        const float y = j >= Base::row_of(i) ? 0.f : B[n][i] * (scale_k[i >> 1] * scale);
        seen[i >> 1] += y;
        B[n][i] = y * beta;
      }
    });
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      den[r] = Base::quad_sum(den[r]);
      if (DELTA) seen[r] = Base::quad_sum(seen[r]);
    }

    if constexpr (GENERAL)
      if (before.W) {
        float zx[2];
        Base::first_column(zx, read_q.z);
#pragma unroll
        for (int r = 0; r < 2; ++r) den[r] += scale_q[r] * zx[r];
        Base::first_column(zx, read_k.z);
#pragma unroll
        for (int r = 0; r < 2; ++r) seen[r] += scale_k[r] * zx[r];
      }
    const float rate[2] = {Base::rate_of(seen[0] + c.eps), Base::rate_of(seen[1] + c.eps)};
    const float by[2] = {Base::rate_of(den[0] + c.eps), Base::rate_of(den[1] + c.eps)};
    if (DELTA) prepare(B, rate);
    const int end = GENERAL && (before.W || after.W) ? column + 1 : c.d_value;
#pragma unroll 1
    for (int first = column; first < end; first += columns) {
      Values x, out;
      Base::load_values(c.v, true, first, x);
      Base::clear(out);
      if constexpr (GENERAL)
        if (before.W)
#pragma unroll
          for (int n = 0; n < Base::value_tiles; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
              out[n][i] = scale_q[i >> 1] * read_q.W[n][i];
              if (DELTA) x[n][i] -= rate[i >> 1] * scale_k[i >> 1] * read_k.W[n][i];
            }
      if constexpr (DELTA) {
        solve(x, B);
      } else {
        sync_block();  // D of the columns before has been read
        Base::share_values(s.D, 0, x);
        sync_block();
      }
      Base::add_read(out, A, s.D, 0, last_q, 0);
#pragma unroll
      for (int r = 0; r < 2; ++r)
#pragma unroll
        for (int n = 0; n < Base::value_tiles; ++n) {
          out[n][2 * r] *= by[r];
          out[n][2 * r + 1] *= by[r];
        }
      Base::store_values(c.out, here.queries, first, out);
      if constexpr (GENERAL)
        if (after.W) write_state();  // every warp has read the state before it: a barrier ago
    }
  }

  // B, strictly lower triangular, to the negative matrix of the system; the inverse of its own diagonal block to shared
  // memory.
  FWP_DEVICE void prepare(float (&B)[DELTA ? strip_tiles : 1][4], const float (&rate)[2]) {
    if constexpr (DELTA) {
      float* block = s.square + row / 16 * 16 * 17;
      Base::for_strip([&](int n, int i, int j) {
        B[n][i] *= -rate[i >> 1];
        if (j >= row && j < row + 16) block[(g + 8 * (i >> 1)) * 17 + j - row] = -B[n][i];
      });
      sync_warp();
      Base::invert(block);
    }
  }

  // From x, own rows of the right side, to D in shared memory.
  FWP_DEVICE void solve(Values& x, float (&B)[DELTA ? strip_tiles : 1][4]) {
    const int w = row / 16;
    const float* block = s.square + w * 16 * 17;
    if constexpr (DELTA) {
      sync_block();  // D of the columns before has been read
      const int keys = Base::source_tiles;
      if (w >= keys) Base::share_values(s.D, 0, x);
#pragma unroll 1
      for (int m = 0; m < keys; ++m) {
        if (w == m) {
          Base::share_values(s.D, 0, x);
          sync_warp();
          Float2 a[4];
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const float* at = block + (g + 8 * (i & 1)) * 17 + 2 * t + 8 * (i >> 1);
            a[i] = {at[0], at[1]};
          }
          Base::clear(x);
          Base::add_product(x, a, s.D, w, 0);
          sync_warp();
          Base::share_values(s.D, 0, x);
        }
        sync_block();
        if (w > m) {
          Float2 a[4];
          Base::operand_at(a, B, m);
          Base::add_product(x, a, s.D, m, 0);
        }
      }
    }
  }

  FWP_DEVICE void write_state() {
    constexpr int count = 4;  // tiles of features at a time: D is read once for them
    Base::for_slabs([&](int slab) {
#pragma unroll 1
      for (int first = row / 16; first < Base::feature_tiles(); first += count * tiles) {
        typename Base::Tile16 tile[count];
#pragma unroll
        for (int e = 0; e < count; ++e) {  // behind the last one: that again
          const int number = first + e * tiles;
          tile[e] = number < Base::feature_tiles() ? Base::feature_tile(number) : tile[e ? e - 1 : 0];
        }
        Values x[count];
        float xz[count][4];
        Base::load_outer(x, xz, slab, tile, 0, before);
        Base::add_outer(x, xz, s.keys, tile, s.D, 0, s.written, c.normalize_output ? s.scale_k : nullptr, Base::source_tiles);
        Base::store_outer(x, xz, slab, tile, 0, after);
      }
    });
  }
};

template <class P, int LT, bool DELTA, bool GENERAL> FWP_KERNEL(2 * LT, LT <= 32 && !GENERAL ? 192 / LT : 1) forward_kernel(FWP_CONSTANT Call c) {
  using Own = Forward<P, LT, DELTA, GENERAL>;
  if constexpr (GENERAL) {
    constexpr int threads = 2 * LT;
    const int head = block_index() / slices(c), column = block_index() % slices(c) * slice_columns, all = pieces(c, LT);
    const int used = Shared<P, LT, slice_columns>().lay(nullptr, c, false);
    Carried carried{};
    carried.lay(shared_memory(used + carried.lay(nullptr, c)) + used, c);
    if (c.initial_W)  // read after the barriers at the piece's begin
      carried.load(c, slice_of<const float>(c, {c.initial_W, c.initial_z}, head, column), threads);
#pragma unroll 1
    for (int n = 0; n < all; ++n) {
      const Piece p = piece(c, LT, head, n);
      if (n + 1 < all) Own::fetch(c, piece(c, LT, head, n + 1), column);
      const bool left = leaves(c, LT, n), writes = n < pieces_of_keys(c, LT);
      Columns<const float> before{};
      Columns<float> after{};
      if (n || c.initial_W) before = carried.columns(c, p.before, head, column);
      if (left || (writes && n + 1 < all)) after = carried.columns(c, p.after, head, column);
      Own(c, p, column, before, after).run();
      sync_block();  // shared memory has been read, the state written
      if (left) carried.store(c, slice_of(c, p.after, head, column), column == 0, threads);
    }
  } else {
    Own(c, whole(c, block_index()), 0, {}, {}).run();
  }
}

template <class P, bool DELTA, bool GENERAL> const char* launch_forward(const Call& c, void* stream) {
  return with_tokens(c, [&](auto tokens) {
    constexpr int LT = decltype(tokens)::count;
    if constexpr (GENERAL && LT < smallest_general_block) {
      return "no instance";  // with_tokens does not come here
    } else {
      const auto kernel = forward_kernel<P, LT, DELTA, GENERAL>;
      const int blocks = c.batch * c.heads * (GENERAL ? slices(c) : 1);
      return launch(kernel, blocks, 2 * LT, bytes_of<P>(c, false), static_cast<Stream>(stream), c);
    }
  });
}

}  // namespace fwp::gpu
