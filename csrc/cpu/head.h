// Forward of one head.
//
// Positions are divided into chunks: one if there are at most longest_chunk positions, as in sentences, otherwise
// several shorter ones. Rows are positions, but those of phi are features. Features are scaled by the normaliser, and
// by 0 at padding:
//
//     P = M o (Q K^T)     M: causal mask, or ones
//     Y = K W + stril(K K^T) U,  U = beta V - rate Y      delta; rate = beta, or beta / (z.k + eps)
//     U = V                                               sum, gated
//     N = P U + Q W,  out = N or N / (P 1 + Q z + eps)
//     W <- W + K^T U,  z <- z + K^T 1
//
// Under the gated rule, what was written at s has at t the weight M_ts = beta_s (1 - beta_{s+1}) .. (1 - beta_t), and
// the state before the chunk has left_t = (1 - beta_0) .. (1 - beta_t). P is multiplied by M; if all targets read after
// the chunk, each row of P is multiplied by the last row of M. This row also multiplies U when it is written to W, and
// left multiplies Q W and W itself. Under the gated delta rule, M_ts = alpha_{s+1} .. alpha_t and left_t = alpha_0 ..
// alpha_t. Its keys read after the decay, as its queries do, so M also multiplies K K^T, and left multiplies K W, both
// in Y and in the denominators.
//
// Where the output is normalised, the accumulator z is one more column of W, and U has a column of ones: "wide"
// rows of `wide` elements hold d_value numbers and that column; "narrow" is d_value rounded up to whole vectors.
#pragma once

#include "instruction_set.h"

#include "grams.h"

namespace fwp::FWP_NAMESPACE {
namespace {

template <class T> struct Head : Grams<T> {
  using Base = Grams<T>;
  using Base::ahead, Base::b, Base::buffer, Base::c, Base::corrects, Base::grams_done, Base::h, Base::is_pad, Base::k,
      Base::KK, Base::ldp, Base::P, Base::plan, Base::q, Base::triangle;
  using Number = T;

  const bool decays;
  T *M, *U, *Y, *N, *W;  // as above; M is for rules that decay
  T *beta, *rate, *denominator;
  T *seen, *row_sums;  // z.k + eps; sums of the rows of P or, in the backward, of dN o N
  T *keep, *left;  // decays: the factor of earlier content at each position; their products up to it, as above
  const T* decay_to_end;  // decays: the weight of each write at the end of the chunk, which is the last row of M
  T total_decay;  // decays: the factor of the state before the chunk at its end, which is the last of left
  T *unmasked_KK = nullptr, *unweighed_Y = nullptr;  // gated_delta's backward: K K^T before M, and K W
  bool has_W = false;

  Head(const Call<T>& call, idx b, idx h, Arena<T>& arena) : Base(call, b, h, arena), decays(fwp::decays(call.rule)) {
    const idx rows = plan.rows, ld = rows + width<T>;
    M = arena.take(decays ? rows * ldp : 0);
    U = arena.take(rows * plan.wide);
    Y = arena.take(corrects ? rows * plan.wide : 0);
    N = arena.take(rows * plan.wide);
    W = arena.take(c.d_dot * plan.wide);
    beta = arena.take(ld);
    rate = arena.take(ld);
    seen = arena.take(ld);
    row_sums = arena.take(ld);
    denominator = arena.take(ld);
    keep = arena.take(decays ? ld : 0);
    left = arena.take(decays ? ld : 0);
  }

  // ---- state ----

  void copy_state_in(const T* from_W, const T* from_z, T* to) const {
    for (idx i = 0; i < c.d_dot; ++i) {
      T* row = to + i * plan.wide;
      const T* from = from_W + ((b * c.heads + h) * c.d_dot + i) * c.d_value;
      for (idx j = 0; j < c.d_value; ++j) row[j] = from[j];
      for (idx j = c.d_value; j < plan.wide; ++j) row[j] = 0;
      if (c.normalize_output && from_z) row[c.d_value] = from_z[(b * c.heads + h) * c.d_dot + i];
    }
  }
  void copy_state_out(const T* from, T* to_W, T* to_z) const {
    for (idx i = 0; i < c.d_dot; ++i) {
      const T* row = from + i * plan.wide;
      T* to = to_W + ((b * c.heads + h) * c.d_dot + i) * c.d_value;
      for (idx j = 0; j < c.d_value; ++j) to[j] = row[j];
      if (c.normalize_output && to_z) to_z[(b * c.heads + h) * c.d_dot + i] = row[c.d_value];
    }
  }

  // ---- helpers ----

  // Loads rows of values or of their gradient, filled up with zeros to `wide`. Values at padded keys are not read.
  void load_rows(const Rows<const T>& rows, idx t0, idx count, bool keys, T* to) const {
    const idx next = ahead(rows);
    for (idx t = 0; t < count; ++t) {
      T* row = to + t * plan.wide;
      if (keys && is_pad(t0 + t)) {
        for (idx j = 0; j < plan.wide; ++j) row[j] = 0;
        continue;
      }
      const T* from = rows.at(b, t0 + t, h);
      idx j = 0;
      for (; j + width<T> <= c.d_value; j += width<T>) {
        prefetch<false>(from + j + next);
        store(row + j, load(from + j));
      }
      for (; j < c.d_value; ++j) row[j] = from[j];
      for (; j < plan.wide; ++j) row[j] = 0;
    }
  }

  void scale_rows(idx count, const T* by, T* rows, idx columns) const {
    for (idx t = 0; t < count; ++t) {
      const Vec<T> s = splat(by[t]);
      for (idx j = 0; j < columns; j += width<T>) store(rows + t * plan.wide + j, load(rows + t * plan.wide + j) * s);
    }
  }

  View<T> rows(const T* rows) const { return {rows, plan.wide, 1}; }

  // ---- writing ----

  // Loads keys and U (for delta also Y, rate, KK) of the chunk that starts at t0, from the state W if there is one.
  void load_chunk(idx t0, idx count) {
    if (!grams_done) load_side(c, c.k, c.key_padding_mask, b, h, t0, count, k, buffer);
    load_rows(c.v, t0, count, true, U);
    if (takes_beta(c.rule))
      for (idx t = 0; t < count; ++t) beta[t] = is_pad(t0 + t) ? T(0) : *c.beta.at(b, t0 + t, h);
    if (decays) load_decay(t0, count);
    if (corrects) {
      Base::gram(k, k, true, -1, KK, c.normalize_output && !decays ? seen : nullptr);
      if (decays)
        for (idx i = 0; i < count; ++i) seen[i] = masked_sum(i, M + i * ldp, KK, unmasked_KK);
      if (has_W) {
        state_product(k, W, Y);
        for (idx i = 0; unweighed_Y && i < count * plan.wide; ++i) unweighed_Y[i] = Y[i];
        if (decays) scale_rows(count, left, Y, plan.wide);
      }
      for (idx t = 0; t < count; ++t) {
        if (!c.normalize_output) {
          rate[t] = beta[t];
          continue;
        }
        seen[t] += (has_W ? Y[t * plan.wide + c.d_value] : T(0)) + c.eps;
        rate[t] = seen[t] == 0 ? T(0) : beta[t] / seen[t];
      }
      scale_rows(count, beta, U, plan.narrow);
      if (has_W) triangle_solve<true>(count, plan.narrow, triangle(KK), rate, 1, Y, plan.wide, U, plan.wide);
      else triangle_solve<false>(count, plan.narrow, triangle(KK), rate, 1, Y, plan.wide, U, plan.wide);
    }
    if (c.normalize_output)
      for (idx t = 0; t < count; ++t) U[t * plan.wide + c.d_value] = 1;
  }

  // Computes keep, M and left of the chunk; a pad changes nothing.
  void load_decay(idx t0, idx count) {
    const bool weighs = weighs_writes(c.rule);
    total_decay = 1;
    for (idx t = 0; t < count; ++t) {
      const T alpha = !takes_alpha(c.rule) || is_pad(t0 + t) ? T(1) : *c.alpha.at(b, t0 + t, h);
      keep[t] = keep_of(c.rule, beta[t], alpha);
      T* row = M + t * ldp;
      for (idx j = 0; j < k.padded; j += width<T>)
        store(row + j, t == 0 ? Vec<T>{} : load(row - ldp + j) * splat(keep[t]));
      row[t] = weighs ? beta[t] : T(1);
      left[t] = total_decay *= keep[t];
    }
    decay_to_end = M + (count > 0 ? count - 1 : 0) * ldp;
  }

  // Replaces the state before the chunk in `to`, if there is one, by the state after it. Overwrites U.
  void write_chunk(T* to) {
    if (decays) {
      scale_rows(k.tokens, decay_to_end, U, plan.wide);
      if (has_W)
        for (idx i = 0; i < c.d_dot * plan.wide; i += width<T>) store(to + i, load(to + i) * splat(total_decay));
    }
    write(k, U, to, has_W);
  }

  // to += (features of s)^T what, or = if !add. `what` (wide rows) is scaled with s in place.
  void write(const Side<T>& s, T* what, T* to, bool add) const {
    scale_rows(s.tokens, s.scale, what, plan.wide);
    const idx columns = plan.lone_z ? plan.narrow : plan.wide;
    if (add) product<true>(c.d_dot, columns, s.tokens, Base::features(s), what, plan.wide, to, plan.wide);
    else product<false>(c.d_dot, columns, s.tokens, Base::features(s), what, plan.wide, to, plan.wide);
    if (plan.lone_z) write_z(s, what, to, add);
  }

  // Writes z if it is alone in its vector. As part of the product, this one column would cost as much as a whole vector
  // of columns. The rest of the vector is 0.
  void write_z(const Side<T>& s, const T* what, T* to, bool add) const {
    T column[longest_chunk], sums[width<T>];
    for (idx t = 0; t < s.padded; ++t) column[t] = t < s.tokens ? what[t * plan.wide + c.d_value] : T(0);
    for (idx first = 0; first < c.d_dot; first += width<T>) {
      const idx count = first + width<T> < c.d_dot ? width<T> : c.d_dot - first;
      Vec<T> sum[width<T>] = {};
      for (idx r = 0; r < count; ++r)
        for (idx t = 0; t < s.padded; t += width<T>) sum[r] += load(s.phi + (first + r) * s.ld + t) * load(column + t);
      store(sums, sum_of_rows<T>(sum));
      for (idx r = 0; r < count; ++r) {
        T* z = to + (first + r) * plan.wide + c.d_value;
        put_z(z, add ? *z + sums[r] : sums[r]);
      }
    }
  }
  void z_product(const Side<T>& s, const T* from, T* to) const {
    T sums[longest_chunk];
    for (idx t = 0; t < s.padded; t += width<T>) {
      Vec<T> sum[4] = {};  // several, because with one each addition would wait for the previous one
      idx i = 0;
      for (; i + 4 <= c.d_dot; i += 4)
        for (int r = 0; r < 4; ++r)
          sum[r] += load(s.phi + (i + r) * s.ld + t) * splat(from[(i + r) * plan.wide + c.d_value]);
      for (; i < c.d_dot; ++i) sum[0] += load(s.phi + i * s.ld + t) * splat(from[i * plan.wide + c.d_value]);
      store(sums + t, (sum[0] + sum[1]) + (sum[2] + sum[3]));
    }
    for (idx t = 0; t < s.tokens; ++t) put_z(to + t * plan.wide + c.d_value, sums[t]);
  }
  static void put_z(T* to, T z) {
    Vec<T> row{};
    row[0] = z;
    store(to, row);
  }

  // ---- reading ----

  // to = (scaled features of s) state, wide.
  void state_product(const Side<T>& s, const T* state, T* to) const {
    const idx columns = plan.lone_z ? plan.narrow : plan.wide;
    product<false>(s.tokens, columns, c.d_dot, Base::tokens(s), state, plan.wide, to, plan.wide);
    if (plan.lone_z) z_product(s, state, to);
    scale_rows(s.tokens, s.scale, to, plan.wide);
  }
  // The weight that W has for target t.
  T state_weight(idx t, bool from_gram) const {
    return !decays || !from_gram ? T(1) : plan.causal ? left[t] : total_decay;
  }
  // Computes P, adds its row sums to the denominators, and stores P before M in `unmasked`.
  void compute_P(T* unmasked = nullptr) {
    Base::gram(q, k, plan.causal, 0, P, c.normalize_output && !decays ? row_sums : nullptr);
    for (idx i = 0; decays && i < q.tokens; ++i)
      row_sums[i] = masked_sum(i, plan.causal ? M + i * ldp : decay_to_end, P, unmasked);
    if (c.normalize_output)
      for (idx t = 0; t < q.tokens; ++t) denominator[t] += row_sums[t];
  }

  // Multiplies row i of a Gram matrix by m, keeps the row as it was in `unmasked`, and returns its new sum.
  T masked_sum(idx i, const T* m, T* gram, T* unmasked) {
    Vec<T> sum{};
    for (idx j = 0; j < k.padded; j += width<T>) {
      const Vec<T> x = load(gram + i * ldp + j), y = x * load(m + j);
      if (unmasked) store(unmasked + i * ldp + j, x);
      store(gram + i * ldp + j, y);
      sum += y;
    }
    return sum_of_lanes<T>(sum);
  }

  // Computes N and denominators of the tile in q, from W if there is one and, if from_gram, from the chunk in k.
  void compute_N(bool from_gram) {
    const idx count = q.tokens;
    for (idx t = 0; t < count; ++t) denominator[t] = c.eps;
    if (has_W) {
      state_product(q, W, N);
      if (decays && from_gram)
        for (idx t = 0; t < count; ++t)
          for (idx j = 0; j < plan.wide; ++j) N[t * plan.wide + j] *= state_weight(t, true);
      if (c.normalize_output)
        for (idx t = 0; t < count; ++t) denominator[t] += N[t * plan.wide + c.d_value];
    }
    if (!from_gram) return;
    compute_P();
    if (has_W) add_written<true>(count);
    else add_written<false>(count);
  }
  // N (+)= P U
  template <bool Add> void add_written(idx count) const {
    if (plan.causal) triangle_product<Add>(count, plan.narrow, triangle(P), U, plan.wide, N, plan.wide);
    else product<Add>(count, plan.narrow, k.tokens, View<T>{P, ldp, 1}, U, plan.wide, N, plan.wide);
  }

  void load_queries(idx t0, idx count) { load_side(c, c.q, Rows<const bool>{}, b, h, t0, count, q, buffer); }

  void write_out(idx t0, idx count, bool from_gram) {
    if (!grams_done) load_queries(t0, count);
    compute_N(from_gram);
    for (idx t = 0; t < count; ++t) {
      const T* row = N + t * plan.wide;
      const T d = c.normalize_output ? denominator[t] : T(1);
      T by = d == 0 ? T(0) : 1 / d;
      if (is_beyond(by)) {  // d is so small that its inverse is infinite; or NaN
        for (idx j = 0; j < c.d_value; ++j) N[t * plan.wide + j] /= d;
        by = 1;
      }
      store_row(row, by, d == 0, c.out.at(b, t0 + t, h), ahead(c.out));
    }
  }
  // to = by * row; zeros if `zero`, even if the row has NaN or infinity.
  void store_row(const T* row, T by, bool zero, T* to, idx ahead) const {
    if (zero) {
      for (idx j = 0; j < c.d_value; ++j) to[j] = 0;
      return;
    }
    idx j = 0;
    for (; j + width<T> <= c.d_value; j += width<T>) {
      prefetch<true>(to + j + ahead);
      store(to + j, load(row + j) * splat(by));
    }
    for (; j < c.d_value; ++j) to[j] = row[j] * by;
  }

  template <class F> void for_tiles(F f) const {
    for (idx t0 = 0; t0 < c.targets; t0 += plan.tile) f(t0, t0 + plan.tile < c.targets ? plan.tile : c.targets - t0);
  }
  idx chunk_length(idx n) const {
    const idx t0 = n * plan.chunk;
    return t0 + plan.chunk < c.sources ? plan.chunk : c.sources - t0;
  }
  void start() {
    has_W = c.initial_W != nullptr;
    if (has_W) copy_state_in(c.initial_W, c.initial_z, W);
  }

  void forward() {
    start();
    if (Base::groups_features()) Base::load_grams(c.targets, c.sources);
    for (idx n = 0; n < plan.chunks; ++n) {
      const idx t0 = n * plan.chunk, count = chunk_length(n);
      load_chunk(t0, count);
      if (plan.causal) write_out(t0, count, true);
      else if (!plan.reads_state) for_tiles([&](idx t, idx tile) { write_out(t, tile, true); });
      if (plan.writes_state || n + 1 < plan.chunks) {
        write_chunk(W);
        has_W = true;
      }
    }
    if (plan.reads_state) for_tiles([&](idx t, idx tile) { write_out(t, tile, false); });
    if (c.W) copy_state_out(W, c.W, c.z);
  }
};

}  // namespace
}  // namespace fwp::FWP_NAMESPACE
