// One decoding step of one head, over the positions of a block and the state before it. This file is included once per
// instruction set, see kernels_*.cpp. fwp_fairseq/ops/decoding.py has the equations and the layout of the cache.
//
// A token's features lie side by side in a row, so that positions can be read through a table, each from the row of
// storage in which it was written. Queries that read the same positions (a query and its key under a rule that
// corrects; the hypotheses of a sentence in cross-attention) go through them together, N at a time.
//
// Features come in blocks of whole vectors, filled up with zeros. A map with offsets has nu blocks, the products of its
// base features with the same features rolled by 1 .. nu; any other map has one block of d_dot features.
#pragma once

#include "instruction_set.h"

#include "feature_map.h"
#include "plan.h"
#include "rows.h"

namespace fwp::FWP_NAMESPACE {
namespace {

constexpr idx most_queries = 4;  // how many queries read the positions together

template <class T> struct Decoder {
  static constexpr idx lanes = width<T>;
  static constexpr idx tile = 16;  // positions whose features, or phi_tile, are computed at once
  const DecodeCall<T>& c;
  const bool corrects, decays;
  idx blocks, used, padded;  // blocks of `used` features, `padded` to whole vectors
  idx halo;  // nu, rounded up to whole vectors: copies of the last base features, which a roll brings before the first
  idx r_size;
  idx narrow;  // d_value rounded up to whole vectors
  idx most;  // how many positions a call may read
  idx wide;  // fold: length of a row of d_value numbers and z

  T *features, *numerators, *r, *products, *partial, *weights, *state, *phi_tile, *u_tile;
  T* x;  // favor alone: R x and both exponentials
  const T **keys, **written;
  struct Active {
    std::int32_t feature, position;  // number of the feature, and where it lies among the padded blocks
  };
  Active* active;

  Decoder(const DecodeCall<T>& call, Arena<T>& arena)
      : c(call), corrects(fwp::corrects(c.rule)), decays(fwp::decays(c.rule)) {
    blocks = c.nu ? c.nu : 1;
    used = c.d_dot / blocks;
    padded = round_up(used, lanes);
    halo = round_up(c.nu, lanes);
    r_size = halo + padded + lanes;
    narrow = round_up(c.d_value, lanes);
    wide = round_up(c.d_value + 1, lanes);
    most = c.count + c.tokens + lanes;
    features = arena.take(most_queries * blocks * padded);
    numerators = arena.take(most_queries * narrow);
    r = arena.take(tile * r_size);
    x = arena.take(3 * round_up(c.m, lanes));
    products = arena.take(most_queries * most);
    partial = arena.take(most_queries * tile * lanes);
    weights = arena.take(most);
    keys = arena.template take_as<const T*>(most);
    written = arena.template take_as<const T*>(most);
    active = arena.template take_as<Active>(c.d_dot);
    phi_tile = arena.take(c.new_W ? tile * c.d_dot : 0);
    u_tile = arena.take(c.new_W ? tile * wide : 0);
    state = arena.take(c.new_W ? c.d_dot * wide : 0);
  }

  // ---- features ----

  // Sets f = phi(from), in padded blocks, normalised if the call normalises features. Returns the factor.
  T load_features(const T* from, T* f) const {
    const Vec<T> total =
        with_map(c.map, [&](auto map) FWP_INLINE_LAMBDA { return Phi<map.value>::decode(*this, from, f); });
    if (!c.normalize_features) return 1;
    const T sum = sum_of_lanes<T>(total) + c.eps;
    // An infinite sum gives NaN, as in the operators. Dividing by it would give zeros, because keys are cached before
    // phi.
    const T scale = sum == 0 ? T(0) : is_beyond(sum) ? sum - sum : 1 / sum;
    for (idx i = 0; i < blocks * padded; i += lanes) store(f + i, load(f + i) * splat(scale));
    return scale;
  }
  // The sum of features in one block, if normalisation needs it.
  Vec<T> sum_of(const T* f) const {
    Vec<T> total{};
    for (idx i = 0; c.normalize_features && i < padded; i += lanes) total += load(f + i);
    return total;
  }

  // ---- reading ----

  // Finds the block's positions for this row in storage and, if the rule decays, their weights. Returns the weight of
  // the state.
  T locate(idx row, idx h, idx count) {
    const std::int32_t* table = c.ancestors ? c.ancestors + row * c.ancestors_ld : nullptr;
    T left = 1;
    for (idx p = count - 1; p >= 0; --p) {
      const idx place = (p * c.stored + (table ? table[p] : c.state_rows[row])) * c.heads + h;
      keys[p] = c.keys + place * c.d_cached;
      written[p] = c.written + place * c.d_value;
      if (decays) {
        const T gate = c.strengths[place];
        weights[p] = weighs_writes(c.rule) ? gate * left : left;
        left *= keep_of_stored(c.rule, gate);
      }
    }
    return left;
  }

  // Computes the products of positions first .. first + K with N queries, as vectors in `partial` whose lanes remain to
  // be summed.
  template <class Cache, int N, int K> FWP_INLINE void multiply(const T* f, idx first, idx query_size) {
    Vec<T> sum[K][N];
    for (int k = 0; k < K; ++k)
      for (int n = 0; n < N; ++n) sum[k][n] = Vec<T>{};
    Cache::template add_products<N, K>(*this, f, first, query_size, sum);
    for (int k = 0; k < K; ++k)
      for (int n = 0; n < N; ++n) store(partial + ((first % tile + k) * N + n) * lanes, sum[k][n]);
  }

  template <class Cache, int N> void multiply_all(const T* f, idx count) {
    constexpr int K = N > 2 ? 2 : 4;
    const idx query_size = blocks * padded;
    for (idx p = 0; p < count; p += tile) {
      const idx end = p + tile < count ? p + tile : count;
      for (idx t = p; t < end; ++t) expect_row<false>(keys[t], c.d_cached);
      idx t = Cache::template multiply<N>(*this, f, p, end, query_size);
      for (; t + K <= end; t += K) multiply<Cache, N, K>(f, t, query_size);
      for (; t < end; ++t) multiply<Cache, N, 1>(f, t, query_size);
      // Sums beyond the last product are computed too, but never read.
      for (idx i = 0; i < (end - p) * N; i += lanes) {
        Vec<T> rows[lanes];
        unroll<lanes>([&](auto l) FWP_INLINE_LAMBDA { rows[l] = load(partial + (i + l) * lanes); });
        store(products + p * N + i, sum_of_rows<T, int(lanes) / 2>(rows));
      }
    }
    if (decays)
      for (idx p = 0; p < count; ++p)
        for (int n = 0; n < N; ++n) products[p * N + n] *= weights[p];
  }

  // numerators[n] += sum over rows of by(row, n) rows[row], in the C vectors of columns from j on.
  template <int N, int C, class Row, class By>
  FWP_INLINE void accumulate(idx count, idx j, Row row, By by) {
    Vec<T> sum[N][C];
    for (int n = 0; n < N; ++n)
      for (int v = 0; v < C; ++v) sum[n][v] = load(numerators + n * narrow + j + v * lanes);
    for (idx p = 0; p < count; ++p) {
      const T* from = row(p) + j;
      Vec<T> a[C];
      for (int v = 0; v < C; ++v) a[v] = load(from + v * lanes);
      for (int n = 0; n < N; ++n) {
        const Vec<T> s = splat(by(p, n));
        for (int v = 0; v < C; ++v) sum[n][v] += s * a[v];
      }
    }
    for (int n = 0; n < N; ++n)
      for (int v = 0; v < C; ++v) store(numerators + n * narrow + j + v * lanes, sum[n][v]);
  }
  template <int N, class Row, class By> FWP_INLINE void accumulate_all(idx count, Row row, By by) {
    constexpr int C = N > 2 && FWP_VECTOR_BYTES < 64 ? 2 : 4;  // as many sums as there are registers
    idx j = 0;
    for (; j + C * lanes <= c.d_value; j += C * lanes) accumulate<N, C>(count, j, row, by);
    if (C == 4 && j + 2 * lanes <= c.d_value) {
      accumulate<N, 2>(count, j, row, by);
      j += 2 * lanes;
    }
    for (; j + lanes <= c.d_value; j += lanes) accumulate<N, 1>(count, j, row, by);
    for (; j < c.d_value; ++j)
      for (int n = 0; n < N; ++n) {
        T sum = 0;
        for (idx p = 0; p < count; ++p) sum += by(p, n) * row(p)[j];
        numerators[n * narrow + j] += sum;
      }
  }

  // Computes numerators and denominators of N queries over `count` located positions and the state.
  template <int N> void attend(const T* f, idx row, idx h, idx count, T left, T* denominators) {
    const idx query_size = blocks * padded;
    for (idx i = 0; i < N * narrow; i += lanes) store(numerators + i, Vec<T>{});
    for (int n = 0; n < N; ++n) denominators[n] = 0;
    if (c.W) {
      const idx place = c.state_rows[row] * c.heads + h;
      const T *W = c.W + place * c.d_dot * c.d_value, *z = c.z ? c.z + place * c.d_dot : nullptr;
      idx found = 0;
      for (idx block = 0, i = 0; block < blocks; ++block)
        for (idx b = 0; b < used; ++b, ++i) {
          const T* a = f + block * padded + b;
          T any = 0;
          for (int n = 0; n < N; ++n) any = a[n * query_size] != 0 ? T(1) : any;
          active[found] = {std::int32_t(i), std::int32_t(block * padded + b)};
          found += any != 0;
          if (c.normalize_output)
            for (int n = 0; n < N; ++n) denominators[n] += a[n * query_size] * z[i];
        }
      accumulate_all<N>(
          found, [&](idx p) FWP_INLINE_LAMBDA { return W + active[p].feature * c.d_value; },
          [&](idx p, int n) FWP_INLINE_LAMBDA { return f[n * query_size + active[p].position]; });
      if (decays)
        for (int n = 0; n < N; ++n) {
          denominators[n] *= left;
          for (idx j = 0; j < narrow; j += lanes)
            store(numerators + n * narrow + j, load(numerators + n * narrow + j) * splat(left));
        }
    }
    with_map(c.map, [&](auto map) { multiply_all<typename Phi<map.value>::Cache, N>(f, count); });
    for (idx p = 0; p < count; ++p) expect_row<false>(written[p], c.d_value);
    accumulate_all<N>(
        count, [&](idx p) FWP_INLINE_LAMBDA { return written[p]; },
        [&](idx p, int n) FWP_INLINE_LAMBDA { return products[p * N + n]; });
    if (c.normalize_output)
      for (idx p = 0; p < count; ++p)
        for (int n = 0; n < N; ++n) denominators[n] += products[p * N + n];
  }

  // to[j] = number(j) / (denominator + eps), or 0 if this sum is 0.
  template <class F> void divide(F number, T denominator, T* to) const {
    denominator = c.normalize_output ? denominator + c.eps : T(1);
    const bool zero = denominator == 0;
    const T by = 1 / denominator;
    const bool divides = is_beyond(by);  // the denominator is so small that its inverse is infinite; or NaN
    for (idx j = 0; j < c.d_value; ++j) to[j] = zero ? T(0) : divides ? number(j) / denominator : number(j) * by;
  }

  // ---- the kernels ----

  void step(idx row, idx h) {
    T *query = features, *key = features + blocks * padded;
    for (idx t = 0; t < c.tokens; ++t) {
      const idx n = c.count + t;
      const bool padding = is_pad(c.key_padding_mask, row, t);
      const T left = locate(row, h, n);
      load_features(c.q.at(row, t, h), query);
      const idx place = (n * c.stored + row) * c.heads + h;
      T *kept = c.keys + place * c.d_cached, *u = c.written + place * c.d_value;
      const T* k = c.k.at(row, t, h);
      const T scale = padding ? T(0) : load_features(k, key);
      if (padding)
        for (idx i = 0; i < blocks * padded; i += lanes) store(key + i, Vec<T>{});
      with_map(c.map, [&](auto map) { Phi<map.value>::Cache::keep(*this, k, key, scale, kept); });
      for (idx i = 0; padding && i < c.d_cached; ++i) kept[i] = 0;
      T denominators[2];
      if (corrects) attend<2>(features, row, h, n, left, denominators);
      else attend<1>(features, row, h, n, left, denominators);
      const T beta = c.beta && !padding ? *c.beta.at(row, t, h) : T(0);
      const T alpha = takes_alpha(c.rule) && !padding ? *c.alpha.at(row, t, h) : T(1);
      const T keep = keep_of(c.rule, beta, alpha);
      const T* v = c.v.at(row, t, h);
      if (padding) {
        for (idx j = 0; j < c.d_value; ++j) u[j] = 0;
      } else if (corrects) {
        const T* old = numerators + narrow;
        divide([&](idx j) FWP_INLINE_LAMBDA { return keep * old[j]; }, keep * denominators[1], u);
        for (idx j = 0; j < c.d_value; ++j) u[j] = beta * (v[j] - u[j]);
      } else {
        for (idx j = 0; j < c.d_value; ++j) u[j] = v[j];
      }
      T product = dot(query, key, blocks * padded);
      if (decays) c.strengths[place] = stored_gate(c.rule, beta, alpha);
      if (weighs_writes(c.rule)) product *= beta;
      divide([&](idx j) FWP_INLINE_LAMBDA { return keep * numerators[j] + product * u[j]; },
             keep * denominators[0] + product, c.out.at(row, t, h));
    }
  }

  template <int N> void read_some(idx first, idx query, idx h, T left) {
    T denominators[N];
    for (int n = 0; n < N; ++n)
      load_features(c.q.at(first + (query + n) / c.tokens, (query + n) % c.tokens, h), features + n * blocks * padded);
    attend<N>(features, first, h, c.count, left, denominators);
    for (int n = 0; n < N; ++n) {
      divide([&](idx j) FWP_INLINE_LAMBDA { return numerators[n * narrow + j]; }, denominators[n],
             c.out.at(first + (query + n) / c.tokens, (query + n) % c.tokens, h));
    }
  }

  void read(idx first, idx last, idx h) {
    const idx queries = (last - first) * c.tokens;
    const T left = locate(first, h, c.count);
    idx query = 0;
    for (; query + 4 <= queries; query += 4) read_some<4>(first, query, h, left);
    for (; query + 2 <= queries; query += 2) read_some<2>(first, query, h, left);
    for (; query < queries; ++query) read_some<1>(first, query, h, left);
  }

  void fold(idx row, idx h) {
    const T left = locate(row, h, c.count);
    // Without a state, state_rows does not number rows of a state.
    const idx from = c.W ? c.state_rows[row] * c.heads + h : 0, to = row * c.heads + h;
    for (idx i = 0; i < c.d_dot; ++i) {
      T* w = state + i * wide;
      for (idx j = 0; j < wide; ++j) w[j] = 0;
      if (!c.W) continue;
      for (idx j = 0; j < c.d_value; ++j) w[j] = left * c.W[(from * c.d_dot + i) * c.d_value + j];
      if (c.z) w[c.d_value] = left * c.z[from * c.d_dot + i];
    }
    for (idx p = 0; p < c.count; p += tile) {
      const idx count = p + tile < c.count ? tile : c.count - p;
      for (idx t = 0; t < count; ++t) {
        T *f = phi_tile + t * c.d_dot, *u = u_tile + t * wide;
        with_map(c.map, [&](auto map) { Phi<map.value>::Cache::features(*this, keys[p + t], f); });
        const T weight = decays ? weights[p + t] : T(1);
        for (idx j = 0; j < c.d_value; ++j) u[j] = weight * written[p + t][j];
        for (idx j = c.d_value; j < wide; ++j) u[j] = j == c.d_value ? weight : T(0);
      }
      product<true>(c.d_dot, wide, count, View<T>{phi_tile, 1, c.d_dot}, u_tile, wide, state, wide);
    }
    for (idx i = 0; i < c.d_dot; ++i) {
      for (idx j = 0; j < c.d_value; ++j) c.new_W[(to * c.d_dot + i) * c.d_value + j] = state[i * wide + j];
      if (c.new_z) c.new_z[to * c.d_dot + i] = state[i * wide + c.d_value];
    }
  }
};

}  // namespace
}  // namespace fwp::FWP_NAMESPACE
