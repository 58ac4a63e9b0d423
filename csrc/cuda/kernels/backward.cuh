// The backward of one head: the functions of forward.cuh the other way round, each for one block of threads. With G the
// gradients of numerators (and of z's column), P = D Q K^T, dX the gradient of X, and dW that of the state after the
// chunk:
//
//     outputs_back  E = G U^T:  dQ = (D E) K + d (G W^T),  dK = (D E)^T Q,  dU = P^T G
//     walk_back     dU += e (K dW),  dR = T^T dU,  dV = beta dR;
//                   then dW <- d_end dW + Q^T (d G) - K^T (rate d dR), from chunk to chunk
//     keys_back     dK += e (U dW^T) - rate d (dR W^T) + (dA + dA^T) K,  dA = D rate dL,
//                   dL = -dR U^T below the diagonal
//
// dR stands for dU where nothing is corrected. What depends on z alone makes a column of the same products. Only the
// rules that correct and normalise the output have a circle: rates depend on z, so the gradient of z, and what follows
// from it, is known after that of the keys; its walk and its part of keys_back come last.
#pragma once

#include "outputs_back.cuh"

namespace fwp::gpu {

struct Backward : OutputsBack {
  using OutputsBack::OutputsBack;

  // ---- walk ----

  FWP_DEVICE void walk_back(int number) const {
    const Slice x = slice(number, c.walk_width);
    const int chunks = chunks_of(c);
    if (c.grad_W) load_state(state_gradient(chunks), c.grad_W, c.grad_z, x, {0, feature_tiles()}, false);
    FWP_ROLLED (int i = chunks - 1; i >= 0; --i) {
      load_chunk(i);
      if (!x.is_z || c.rule == Rule::gated) find_rows(x, i);  // else no strength has a gradient of z's column
      if (i > 0 || c.initial_W) change_state_gradient(x, i);
    }
    if (c.initial_W) store_state(c.grad_initial_W, c.grad_initial_z, x, {0, feature_tiles()}, true);
  }
  // dR, and from it dV.
  FWP_DEVICE void find_rows(const Slice& x, int i) const {
    const int rows = keys(i);
    Strip<8> u;
    clear(u);
    if (has_gradient(i + 1)) read_state(u, x_k(i), rows, state_gradient(i + 1).from(0, x.first), x.columns);
    if (owns(rows))
      each(u, x.columns, [&](int t, int j, float& a, float& b) {
        const Float2 direct = *reinterpret_cast<const Float2*>(written_gradient(i) + t * columns_of(c) + x.first + j);
        a = direct.x + decay(last_token, t) * a;
        b = direct.y + decay(last_token, t) * b;
      });
    if (corrected(x)) solve<true>(u, x, i);
    if (owns(rows)) {
      put(rows_gradient(i).from(0, x.first), u, x.columns);
      each(u, x.columns, [&](int t, int, float& a, float& b) {
        a *= strength(x, t);
        b *= strength(x, t);
      });
      if (!x.is_z) give(c.grad_v, s.p, u, chunk * i, c.sources, x);
    }
    sync_block();
  }
  FWP_DEVICE void change_state_gradient(const Slice& x, int i) const {
    const bool norms = x.is_z && z_comes_last(c), rows = corrected(x) || norms;
    const float by = has_gradient(i + 1) ? left(last_token) : 0.f;
    if (rows)
      share(keys(i), x.columns, [&](int t, int j) {
        const float less = -left(t) * (norms ? -1.f : s.rate[t]);
        const Float2 y = norms ? Float2{j == 0 ? own(c.grad_norms, key_rows(c))[chunk * i + t] : 0.f, 0}
                               : rows_gradient(i).from(0, x.first)(t, j);
        return Float2{less * y.x, less * y.y};
      });
    const int begin = c.causal ? i : 0, end = c.causal ? i + 1 : i == chunks_of(c) - 1 ? query_chunks_of(c) : 0;
    const bool read = begin < end && c.targets > 0;
    if (rows || !read) add_to_state(x, i, x_k(i), rows ? keys(i) : 0, by);
    FWP_ROLLED (int q = begin; q < end && read; ++q) {
      share(queries(q), x.columns, [&](int t, int j) {
        const Float2 y = read_gradient(q).from(0, x.first)(t, j);
        return Float2{left(reader(t)) * y.x, left(reader(t)) * y.y};
      });
      add_to_state(x, i, x_q(q), queries(q), rows || q > begin ? 1.f : by);
    }
  }
  // s.x = f(row, column), two neighbours, which others may read after a barrier.
  template <class F> FWP_DEVICE void share(int rows, int columns, F f) const {
    Strip<8> x;
    if (!owns(rows)) return;
    each(x, columns, [&](int r, int j, float& a, float& b) {
      const Float2 y = f(r, j);
      a = y.x, b = y.y;
    });
    put(s.x, x, columns);
  }
  // The gradient of the state before chunk i = by what is carried + A^T s.x, of `rows` rows. It may be that of no state.
  FWP_DEVICE void add_to_state(const Slice& x, int i, const Matrix& a, int rows, float by) const {
    const auto tile = [&](int f) { return f % 2 ? s.p : s.y; };
    each_staged(
        feature_tiles(), [&](int f) { stage_features(tile(f), a, rows, f); },
        [&](int f) {
          if (!owns(width(f))) return;
          Strip<8> w;
          clear(w);
          multiply<true, false>(w, tile(f), s.x, rows, x.columns);
          carry(w, x, f, by);
          if (i > 0) put(state_gradient(i).from(chunk * f, x.first), w, x.columns);
        });
  }

  // ---- keys ----

  // Of slices first .. end - 1. With those of values comes what follows from what keys have read, with the first slice,
  // which comes last, what follows for strengths.
  FWP_DEVICE void keys_back(int i, int first, int end) const {
    load_chunk(i);
    float after[2] = {}, before[2] = {};  // (U dW^T).k and (dR W^T).k of own rows
    const bool meets_states = has_gradient(i + 1) || (corrects(c.rule) && has_state(i));
    if (meets_states) states_back(i, first, end, after, before);
    if (decays(c.rule)) note_state(i, after, before, state_products(i, first, end));
    if (corrects(c.rule) && end > first_slice(c)) pairs_back(i, before);
    if (first == 0) strengths_back(i);
    sync_block();
  }

  // dK of states, by tiles of features. Up to two products make a tile, U dW^T (0) and dR W^T (1), the sum of all slices'.
  // A part is a slice in one of them; z has none in the second one.
  FWP_DEVICE void states_back(int i, int first, int end, float (&after)[2], float (&before)[2]) const {
    const int rows = keys(i), from = has_gradient(i + 1) ? 0 : 1, to = corrects(c.rule) && has_state(i) ? 2 : 1;
    const int slice_parts = to - from, parts = slice_parts * (end - first);
    const auto slice_of = [&](int m) { return slice(first + m % parts / slice_parts); };
    const auto product = [&](int m) { return from + m % slice_parts; };
    const auto columns = [&](int m) {
      const Slice x = slice_of(m);
      return product(m) == 1 && !corrected(x) ? 0 : x.columns;
    };
    Strip<8> e, r;
    clear(e), clear(r);
    each_staged(
        feature_tiles() * parts,
        [&](int m) {
          const int f = m / parts, column = slice_of(m).first;
          if (m % parts == 0) stage_features(turn(s.p, f), x_k(i), rows, f);
          if (columns(m) == 0) return;
          const Matrix a = product(m) ? rows_gradient(i) : written(i),
                       b = product(m) ? state(i) : state_gradient(i + 1);
          stage(turn(s.x, m), a.from(0, column), rows, columns(m));
          stage(turn(s.y, m), b.from(chunk * f, column), width(f), columns(m));
        },
        [&](int m) {
          const int f = m / parts;
          if (!owns(rows)) return;
          if (product(m)) multiply<false, true>(r, turn(s.x, m), turn(s.y, m), columns(m), width(f));
          else multiply<false, true>(e, turn(s.x, m), turn(s.y, m), columns(m), width(f));
          if (m % parts + 1 < parts) return;
          meet_rows(after, e, turn(s.p, f), width(f));
          meet_rows(before, r, turn(s.p, f), width(f));
          FWP_UNROLL (int n = 0; n < 8; ++n)
            FWP_UNROLL (int h = 0; h < 4; ++h) {
              const int t = row + g + 8 * (h / 2);
              e[n][h] = decay(last_token, t) * e[n][h] - (corrects(c.rule) ? s.rate[t] * left(t) * r[n][h] : 0.f);
            }
          give_features(x_k_gradient(i), x_k(i), turn(s.p, f), e, f);
          clear(e), clear(r);
        });
  }
  // This thread's part of dW.W.
  FWP_DEVICE float state_products(int i, int first, int end) const {
    float sum = 0;
    FWP_ROLLED (int n = first; n < end && has_gradient(i + 1) && has_state(i); ++n) {
      const Slice x = slice(n);
      const Matrix W = state(i).from(0, x.first), dW = state_gradient(i + 1).from(0, x.first);
      FWP_ROLLED (int m = thread; m < features_of(c) * x.columns / 2; m += threads) {
        const int row = m / (x.columns / 2), j = m % (x.columns / 2) * 2;
        sum += W(row, j).x * dW(row, j).x + W(row, j).y * dW(row, j).y;
      }
    }
    return sum;
  }

  // What the chunk's end finds, of keys and of the state, and what keys find of the state.
  FWP_DEVICE void note_state(int i, const float (&after)[2], const float (&before)[2], float kept) const {
    const int rows = keys(i);
    float* const M = decay_gradient(i);
    share_rows(after, rows);
    if (thread < rows) M[last_token * decay_ld + thread] += s.sums[thread];
    sync_block();
    if (corrects(c.rule)) {
      share_rows(before, rows);
      if (thread < rows) M[thread * decay_ld + chunk] -= s.rate[thread] * s.sums[thread];
      sync_block();
    }
    FWP_UNROLL (int mask = 1; mask < 32; mask *= 2) kept += shuffle_xor(kept, mask);
    if (lane == 0) s.sums[warp] = kept;
    sync_block();
    if (thread == 0) M[last_token * decay_ld + chunk] += s.sums[0] + s.sums[1] + s.sums[2] + s.sums[3];
    sync_block();
  }

  // Through L and rates; `before` are products with what keys read of the state.
  FWP_DEVICE void pairs_back(int i, const float (&before)[2]) const {
    const int rows = keys(i);
    const bool with_z = c.normalize_output && has_state(i);
    Strip<8> a, dL;
    float old[2];
    meet_keys(a, old, i);
    clear(dL);
    FWP_ROLLED (int n = first_slice(c); n < slices_of(c); ++n) {
      const Slice x = slice(n);
      meet(dL, rows_gradient(i).from(0, x.first), rows, written(i).from(0, x.first), rows, x.columns);
    }
    float rates[2] = {}, norms[2] = {};
    FWP_UNROLL (int n = 0; n < 8; ++n)
      FWP_UNROLL (int h = 0; h < 4; ++h) {
        const int token = row + g + 8 * (h / 2), j = 8 * n + 2 * t + h % 2;
        dL[n][h] = j < token ? -dL[n][h] : 0.f;
        rates[h / 2] += dL[n][h] * a[n][h] * decay(token, j);
      }
    FWP_UNROLL (int r = 0; r < 2; ++r) {
      const int token = row + g + 8 * r;
      FWP_UNROLL (int mask = 1; mask < 4; mask *= 2) rates[r] += shuffle_xor(rates[r], mask);
      rates[r] -= left(token) * before[r];
      if (!owns(rows)) continue;
      const float norm = c.normalize_output ? own(c.norms, key_rows(c))[chunk * i + token] : 1.f;
      norms[r] = c.normalize_output ? -rates[r] * s.rate[token] * norm : 0.f;
      if (t == 0) {
        own(c.grad_norms, key_rows(c))[chunk * i + token] = norms[r];
        put_strength(c.grad_beta, i, token, rates[r] * norm);
      }
    }
    if (decays(c.rule) && owns(rows))
      FWP_UNROLL (int n = 0; n < 8; ++n)
        FWP_UNROLL (int h = 0; h < 4; ++h) {
          const int token = row + g + 8 * (h / 2), j = 8 * n + 2 * t + h % 2;
          if (j < token) decay_gradient(i)[token * decay_ld + j] += (dL[n][h] * s.rate[token] + norms[h / 2]) * a[n][h];
        }
    if (decays(c.rule) && with_z) {  // what a key's denominator has of the state's z
      const float products[2] = {norms[0] * old[0], norms[1] * old[1]};
      share_rows(products, rows);
      if (thread < rows) decay_gradient(i)[thread * decay_ld + chunk] += s.sums[thread];
      sync_block();
    }
    FWP_UNROLL (int n = 0; n < 8; ++n)
      FWP_UNROLL (int h = 0; h < 4; ++h) {
        const int token = row + g + 8 * (h / 2), j = 8 * n + 2 * t + h % 2;
        a[n][h] = j < token ? (dL[n][h] * s.rate[token] + norms[h / 2]) * decay(token, j) : 0.f;
      }
    if (owns(rows)) put(s.p, a, rows);
    const auto tile = [&](int f) { return f % 2 ? s.y : s.x; };
    each_staged(
        feature_tiles(), [&](int f) { stage_features(tile(f), x_k(i), rows, f); },
        [&](int f) {
          if (!owns(rows)) return;
          Strip<8> dk;
          clear(dk);
          multiply<false, false>(dk, s.p, tile(f), rows, width(f));
          multiply<true, false>(dk, s.p, tile(f), rows, width(f));
          if (with_z)
            each(dk, width(f), [&](int token, int j, float& x, float& y) {
              const float by = of_row(norms, token) * left(token);
              x += by * state(i)(chunk * f + j, 0).x;
              y += by * state(i)(chunk * f + j + 1, 0).x;
            });
          give_features(x_k_gradient(i), x_k(i), turn(s.p, 1), dk, f);
        });
  }
  FWP_DEVICE void put_strength(const Rows<float>& to, int i, int key, float x) const {
    const int token = chunk * i + key;
    if (token < c.sources) to.data[offset(to, token, c.sources)] = is_pad(token) ? 0.f : x;
  }
  // dbeta gets the products of dR with values, and under the gated rule what follows from decay; dalpha is that of
  // decay.
  FWP_DEVICE void strengths_back(int i) const {
    if (!takes_beta(c.rule)) return;
    const int rows = keys(i);
    float* const M = decay_gradient(i);
    if (decays(c.rule)) find_kept_gradient(M, s.decay, s.keep, thread);
    float products[2] = {};
    FWP_ROLLED (int n = c.rule == Rule::gated ? 0 : first_slice(c); n < slices_of(c) && owns(rows); ++n) {
      const Slice x = slice(n);
      fetch_values(s.x, x, i);
      Strip<8> dr;
      each(dr, x.columns, [&](int t, int j, float& a, float& b) {
        const Float2 y = rows_gradient(i).from(0, x.first)(t, j);
        a = y.x, b = y.y;
      });
      fetched();
      row_sums(products, dr, x.columns, [&](int t, int j, float a, float b) {
        const Float2 v = value(x, s.x, t, j);
        return a * v.x + b * v.y;
      });
      sync_warp();
    }
    share_rows(products, rows);
    const int token = chunk * i + thread;
    if (thread >= rows || token >= c.sources) return;
    const float kept = decays(c.rule) ? kept_gradient(M, thread) : 0.f;
    const float through_rates = corrects(c.rule) ? c.grad_beta.data[offset(c.grad_beta, token, c.sources)] : 0.f;
    put_strength(c.grad_beta, i, thread, s.sums[thread] + through_rates - (c.rule == Rule::gated ? kept : 0.f));
    if (takes_alpha(c.rule)) put_strength(c.grad_alpha, i, thread, kept);
  }
};

}  // namespace fwp::gpu
