// Decoding steps, and folding a block into the state (equations: fwp_fairseq/ops/decoding.py). A block of threads
// computes one row and head. It reads the n positions before the token, each from the row of storage in the table, and
// the state (W, z) before those:
//
//     q = phi(q_t), k = phi(k_t), divided by their sums where the call asks for it;  a_j = w_j k_j.q, b_j = w_j k_j.k
//     N = sum_j a_j u_j + w W q,  den = sum_j a_j + w z q;    O, seen: the same with b_j and k   (rules that correct)
//     u_t = v_t                        or  beta (v_t - O / (seen + eps));    out = N + (q.k) u_t, over den + q.k + eps
//
// w_j is the factor by which position j has decayed, times beta_j under the gated rule; w is that of the state. If a
// new key decays earlier content, N, den, O and seen are also multiplied by its 1 - beta or alpha. New positions are
// appended to the cache, where later tokens of the call read them.
#pragma once

#include "dense.cuh"

namespace fwp::gpu {

struct Decoder : DenseRows {
  using DenseRows::DenseRows;

  FWP_DEVICE bool writes() const { return c.k.data; }
  FWP_DEVICE int64_t new_place(int p) const { return Hypothesis::place(storage(p, row)); }  // where the token is stored
  template <class V> FWP_DEVICE int64_t offset(const Rows<V>& rows, int token) const {
    return row * rows.batch + token * rows.time + h * rows.head;
  }
  FWP_DEVICE bool is_pad(int token) const {
    return c.key_padding_mask.data && c.key_padding_mask.data[offset(c.key_padding_mask, token)];
  }

  // Needs free shared memory, and earlier tokens already stored.
  FWP_DEVICE void run(int token) const {
    const int positions = c.count + (writes() ? token : 0);
    const bool pad = writes() && is_pad(token), correcting = writes() && corrects(c.rule), dense = is_dense(c);
    weigh(s.weights, s.rows, positions);
    if (dense) start_history(positions);
    if (warp < (writes() ? 2 : 1)) {
      make(token, warp, pad, positions);
      if (dense) make_operand(warp);
    }
    if (dense) {
      copies_arrived();
      sync_warp();
      if (c.x_type == Type::float16) scale_keys<Type::float16>(positions);
      else scale_keys<Type::bfloat16>(positions);
    }
    sync_block();
    float sums[3] = {};  // of a, of b, q.k
    if (dense) multiply(positions, correcting, sums);
    else
      FWP_ROLLED (int p = warp; p < positions; p += decode_warps) {
        const int64_t at = place(p);
        float a = 0, b = 0;
        each_feature(at, [&](int i, float k) {
          a += k * s.phi[i];
          if (correcting) b += k * s.phi[c.d_dot + i];
        });
        FWP_UNROLL (int mask = 16; mask > 0; mask /= 2) a += shuffle_xor(a, mask), b += shuffle_xor(b, mask);
        a *= s.weights[p], b *= s.weights[p];
        if (lane == 0) s.a[p] = a, s.b[p] = b, sums[0] += a, sums[1] += b;
      }
    const float left = s.weights[positions];
    const float* const z = c.z ? c.z + state() * c.d_dot : nullptr;
    FWP_ROLLED (int i = thread; i < c.d_dot; i += decode_threads) {
      const float q = s.phi[i], k = writes() ? s.phi[c.d_dot + i] : 0.f;
      sums[2] += q * k;
      if (z) sums[0] += left * z[i] * q, sums[1] += left * z[i] * k;
    }
    add_up(sums);
    if (dense) {
      if (c.type == Type::float16) read_history<Type::float16>(positions, correcting);
      else read_history<Type::bfloat16>(positions, correcting);
    }
    FWP_ROLLED (int first = 0; first < c.d_value; first += column_block) finish(token, first, positions, pad, sums);
    if (writes() && thread == 0 && h == 0) c.ancestors[row * c.ancestors_ld + positions] = row;
    sync_block();
  }
  template <Type TYPE> FWP_DEVICE void read_history(int positions, bool correcting) const {
    if (correcting) read<TYPE, true>(positions);
    else read<TYPE, false>(positions);
  }
  // One warp computes the features of the query (0) or the key (1), and stores the key in the cache.
  FWP_DEVICE void make(int token, int which, bool pad, int position) const {
    float* const phi = s.phi + which * c.d_dot;
    const Features map(c, s.x + which * 2 * c.d_key, phi);
    const Rows<const void>& from = which ? c.k : c.q;
    const bool empty = which && pad;
    each(c.d_key, [&](int d) { map.take(d, empty ? 0.f : load(c.x_type, from.data, offset(from, token) + d)); });
    sync_warp();
    const float by = map.norm(empty, map.make());
    each(c.d_dot, [&](int i) { phi[i] *= by; });
    sync_warp();
    if (!which) return;
    const int64_t at = new_place(position) * c.d_cached;
    if (c.map == Map::dpfp) each(c.d_key, [&](int d) { keep(at + d, map.input(d) * square_root(by)); });
    else each(c.d_dot, [&](int i) { keep(at + i, phi[i]); });
  }
  // A key whose features are all 0 may, once scaled, exceed float16's range.
  FWP_DEVICE void keep(int64_t at, float x) const {
    constexpr float most = 65504;
    store(c.x_type, c.keys, at, c.x_type != Type::float16 ? x : x > most ? most : x < -most ? -most : x);
  }
  // Adds up sums over all threads; the first column_block threads get the totals.
  FWP_DEVICE void add_up(float (&sums)[3]) const {
    FWP_UNROLL (int i = 0; i < 3; ++i)
      FWP_UNROLL (int mask = 16; mask > 0; mask /= 2) sums[i] += shuffle_xor(sums[i], mask);
    if (lane == 0)
      FWP_UNROLL (int i = 0; i < 3; ++i) s.sums[4 * warp + i] = sums[i];
    sync_block();
    if (thread >= column_block) return;
    FWP_UNROLL (int i = 0; i < 3; ++i) {
      sums[i] = 0;
      for (int w = 0; w < decode_warps; ++w) sums[i] += s.sums[4 * w + i];
    }
  }
  // Divides a numerator by its denominator; the result is 0 if the denominator is 0.
  FWP_DEVICE float over(float x, float total) const {
    if (!c.normalize_output) return x;
    total += c.eps;
    return total == 0 ? 0.f : x / total;
  }

  // Computes 64 columns of u and out; each thread adds up a part of the positions and of the state.
  FWP_DEVICE void finish(int token, int first, int positions, bool pad, const float (&sums)[3]) const {
    const int column = thread % column_block, part = thread / column_block, j = first + column;
    const bool correcting = writes() && corrects(c.rule);
    float N = 0, O = 0;
    if (j < c.d_value) {
      for (int p = part; p < positions && !is_dense(c); p += decode_parts) {
        const float u = written(place(p), j);
        N += s.a[p] * u;
        if (correcting) O += s.b[p] * u;
      }
      const float* const W = c.W ? c.W + state() * c.d_dot * c.d_value + j : nullptr;
      const float left = s.weights[positions];
      if (W)
        for (int i = part; i < c.d_dot; i += decode_parts) {
          const float w = left * W[int64_t(i) * c.d_value];
          N += s.phi[i] * w;
          if (correcting) O += s.phi[c.d_dot + i] * w;
        }
    }
    s.parts[part * column_block + column] = N;
    s.parts[(decode_parts + part) * column_block + column] = O;
    sync_block();
    if (thread < column_block && j < c.d_value) {
      N = O = 0;
      FWP_UNROLL (int p = 0; p < decode_parts; ++p) {
        N += s.parts[p * column_block + column];
        O += s.parts[(decode_parts + p) * column_block + column];
      }
      if (is_dense(c))
        FWP_UNROLL (int w = 0; w < decode_warps; ++w) {
          N += s.dense[w * column_block + column];
          O += s.dense[(decode_warps + w) * column_block + column];
        }
      answer(token, j, positions, pad, N, O, sums);
    }
    sync_block();
  }
  FWP_DEVICE void answer(int token, int j, int position, bool pad, float N, float O, const float (&sums)[3]) const {
    float total = sums[0], seen = sums[1], product = sums[2];
    if (writes()) {
      float u = 0;
      const float beta = !c.beta.data ? 1.f : pad ? 0.f : c.beta.data[offset(c.beta, token)];
      const float alpha = !takes_alpha(c.rule) || pad ? 1.f : c.alpha.data[offset(c.alpha, token)];
      if (weighs_writes(c.rule)) product *= beta;
      if (decays(c.rule)) {
        const float keep = keep_of(c.rule, beta, alpha);
        if (j == 0) c.strengths[new_place(position)] = stored_gate(c.rule, beta, alpha);
        N *= keep, total *= keep, O *= keep, seen *= keep;
      }
      if (!pad) {
        u = load(c.type, c.v.data, offset(c.v, token) + j);
        if (corrects(c.rule)) u = beta * (u - over(O, seen));
      }
      store(c.type, c.written, new_place(position) * c.d_value + j, u);
      N += product * u;
      total += product;
    }
    store(c.type, c.out.data, offset(c.out, token) + j, over(N, total));
  }
};

// A block processes tokens that write one after another; tokens that only read have separate blocks.
FWP_KERNEL(decode_threads, 5) decode_kernel(FWP_CONSTANT DecodeCall c) {
  const int heads = c.rows * c.heads;
  const Decoder decoder(c, block_index() % heads);
  const int first = c.k.data ? 0 : block_index() / heads, end = c.k.data ? c.tokens : first + 1;
  FWP_ROLLED (int token = first; token < end; ++token) decoder.run(token);
}

// Computes the state of each row after the positions of the cache's block: W = w W0 + sum_j w_j phi(k_j) u_j^T, and z
// likewise. A block of threads computes 32 features of a row and head, from 32 positions at a time in shared memory.
constexpr int fold_features = 32, fold_positions = 32;
FWP_BOTH int fold_bytes(const DecodeCall& c) { return 4 * (fold_positions * fold_features + 2 * c.count + 1); }

struct Folder : Hypothesis {
  float *const phi, *const weights;  // [fold_positions][fold_features], [count + 1]
  int* const rows;  // [count]: of storage
  const int first;  // feature

  FWP_DEVICE Folder(const DecodeCall& call, int index, int first)
      : Hypothesis(call, index), phi(reinterpret_cast<float*>(shared_memory(fold_bytes(call)))),
        weights(phi + fold_positions * fold_features), rows(reinterpret_cast<int*>(weights + call.count + 1)),
        first(first) {}

  FWP_DEVICE int64_t place(int p) const { return Hypothesis::place(rows[p]); }

  FWP_DEVICE void run() const {
    weigh(weights, rows, c.count);
    sync_block();
    FWP_ROLLED (int j = thread % column_block; j - thread % column_block < c.d_value; j += column_block) add(j);
  }
  // Each thread computes 16 features of one column, or of z.
  FWP_DEVICE void add(int j) const {
    constexpr int own = fold_features / decode_parts;
    const int part = thread / column_block * own;
    float W[own] = {}, z[own] = {};
    FWP_ROLLED (int begin = 0; begin < c.count; begin += fold_positions) {
      const int count = c.count - begin < fold_positions ? c.count - begin : fold_positions;
      FWP_ROLLED (int i = thread; i < count * fold_features; i += decode_threads) {
        const int p = begin + i / fold_features, f = first + i % fold_features;
        phi[i] = f < c.d_dot ? weights[p] * feature(place(p), f) : 0.f;
      }
      sync_block();
      for (int p = 0; p < count; ++p) {
        const float u = j < c.d_value ? written(place(begin + p), j) : 0.f;
        FWP_UNROLL (int i = 0; i < own; ++i) {
          W[i] += phi[p * fold_features + part + i] * u;
          z[i] += phi[p * fold_features + part + i];
        }
      }
      sync_block();
    }
    const float left = weights[c.count];
    const int64_t from = c.W ? state() * c.d_dot : 0, to = (int64_t(row) * c.heads + h) * c.d_dot;
    FWP_UNROLL (int i = 0; i < own; ++i) {
      const int f = first + part + i;
      if (f >= c.d_dot) continue;
      if (j < c.d_value)
        c.new_W[(to + f) * c.d_value + j] = W[i] + (c.W ? left * c.W[(from + f) * c.d_value + j] : 0.f);
      if (j == 0 && c.new_z) c.new_z[to + f] = z[i] + (c.z ? left * c.z[from + f] : 0.f);
    }
  }
};

FWP_KERNEL(decode_threads, 1) fold_kernel(FWP_CONSTANT DecodeCall c) {
  const int heads = c.rows * c.heads;
  Folder(c, block_index() % heads, block_index() / heads * fold_features).run();
}

}  // namespace fwp::gpu
