// The backward pass of one head. Its functions reverse those of forward.cuh; each is run by one block of threads. G are
// the gradients of the numerators (and of z's column), P = D Q K^T, dX is the gradient of X, and dW that of the state
// after the chunk:
//
//     outputs       G, and dU = P^T G                                                   (forward.cuh)
//     walk_back     dU += e (K dW),  dR = T^T dU,  dV = beta dR;
//                   then dW <- d_end dW + Q^T (d G) - K^T (rate d dR), from chunk to chunk
//     chunks_back   E = G U^T:  dQ = (D E) K + d (G W^T),
//                   dK = (D E)^T Q + e (U dW^T) - rate d (dR W^T) + (dA + dA^T) K,
//                   dA = D rate dL,  dL = -dR U^T below the diagonal
//
// dR stands for dU if the rule does not correct. z is one more column in these products. If the rule corrects and the
// output is normalised, rates depend on z, so the gradient of z is complete only after those of the other columns have
// been through chunks_back. The walk of z and its part of chunks_back therefore come last.
#pragma once

#include "forward.cuh"

namespace fwp::gpu {

struct Backward : Forward {
  using Forward::Forward;

  FWP_DEVICE Matrix rows_gradient(int i) const { return of_keys(c.grad_rows, i); }
  FWP_DEVICE Matrix state_gradient(int i) const { return state_of(c.grad_states, i - 1); }
  FWP_DEVICE bool has_gradient(int i) const { return i < chunks_of(c) || c.grad_W; }  // of the state before chunk i
  FWP_DEVICE float* x_q_gradient(int i) const {
    return own(c.grad_x_q, int64_t(query_rows(c)) * inputs_of(c)) + int64_t(chunk) * i * inputs_of(c);
  }
  FWP_DEVICE float* x_k_gradient(int i) const {
    return own(c.grad_x_k, int64_t(key_rows(c)) * inputs_of(c)) + int64_t(chunk) * i * inputs_of(c);
  }
  FWP_DEVICE float* decay_gradient(int i) const {
    return own(c.grad_decay, int64_t(chunks_of(c)) * decay_floats) + int64_t(i) * decay_floats;
  }
  // sums += the inner products of each of the warp's rows with the same row of a tile.
  FWP_DEVICE void add_row_products(float (&sums)[2], Strip<8>& x, const Tile& with, int columns) const {
    row_sums(sums, x, columns, [&](int r, int j, float a, float b) {
      const uint32_t y = word(with.at + r * tile_ld + j);
      return with.powers[r / 16 * powers_ld + j / 16] * (a * first_half(y) + b * second_half(y));
    });
  }
  // Adds to the gradient of x what follows from y, the warp's rows of the gradient of a tile of features. The warp's
  // rows of the tile `through` are scratch.
  FWP_DEVICE void give_features(float* to, const Matrix& x, const Tile& through, Strip<8>& y, int f) const {
    if (!is_dpfp(c)) return put(to + chunk * f, inputs_of(c), y, width(f), true);
    constexpr int most = 6;  // sums of four products with x, which is below 2^7, stay in the range of halves
    float power[2] = {};
    FWP_UNROLL (int n = 0; n < 8; ++n)
      FWP_UNROLL (int i = 0; i < 4; ++i) power[i / 2] = larger(power[i / 2], absolute(y[n][i]));
    of_four(power, [](float a, float b) { return larger(a, b); });
    FWP_UNROLL (int r = 0; r < 2; ++r) power[r] = power_for(power[r], most);
    FWP_UNROLL (int n = 0; n < 8; ++n)
      FWP_UNROLL (int r = 0; r < 2; ++r)
        word(through.at + (row + g + 8 * r) * tile_ld + 8 * n + 2 * t) =
            pack_halves(power[r] * y[n][2 * r], power[r] * y[n][2 * r + 1]);
    sync_warp();
    // Each lane computes the gradient of x from half of a row.
    const float upper = shuffle(power[0], 4 * (lane % 8)), lower = shuffle(power[1], 4 * (lane % 8));
    const int half = lane / 16, own = row + lane % 16, part = 2 * f + half;
    const float by = undone(lane % 16 < 8 ? upper : lower) * square_root(x.at.powers[x.block(row, 0)]);
    each_group(c, part, [&](int b, int j, int column, bool there) {
      uint32_t here[4] = {}, before[5] = {};
      const uint16_t* const gradient = through.at + own * tile_ld + 32 * half + column;
      if (there) back_group(here, before, x.number(own, before_x(c) + b), j, gradient, c.nu % 2 == 0);
      float* const at = to + own * inputs_of(c) + before_x(c) + b;
      FWP_ROLLED (int i = 0; i < 2; ++i) {  // one half at a time, because both may add to the same numbers
        if (i == half && there) add_words(at, here, by), add_words(at - window_of(j), before, by);
        sync_warp();
      }
    });
  }

  FWP_DEVICE void set_zero(float* x, int count) const {
    FWP_ROLLED (int i = thread; i < count; i += threads) x[i] = 0;
  }
  // Puts numbers of the warp's rows in s.sums, where all threads can read them. The caller needs a barrier before
  // s.sums is written again.
  FWP_DEVICE void share_rows(const float (&x)[2], int rows) const {
    if (owns(rows) && t == 0) s.sums[row + g] = x[0], s.sums[row + g + 8] = x[1];
    sync_block();
  }

  // ---- walk ----

  FWP_DEVICE void walk_back(int number) const {
    const Slice x = slice(number, c.walk_width);
    const int chunks = chunks_of(c);
    if (c.grad_W) load_state(state_gradient(chunks), c.grad_W, c.grad_z, x, {0, feature_tiles()}, false);
    FWP_ROLLED (int i = chunks - 1; i >= 0; --i) {
      load_chunk(i);
      if (!x.is_z || weighs_writes(c.rule)) find_rows(x, i);  // else no gate depends on z's column
      if (i > 0 || c.initial_W) change_state_gradient(x, i);
    }
    if (c.initial_W) store_state(c.grad_initial_W, c.grad_initial_z, x, {0, feature_tiles()}, true);
  }
  // Computes dR, and dV from it.
  FWP_DEVICE void find_rows(const Slice& x, int i) const {
    const int rows = keys(i);
    const bool read = readers(i).first < readers(i).end;
    Strip<8> u;
    clear(u);
    if (has_gradient(i + 1)) read_state(u, x_k(i), rows, state_gradient(i + 1).from(0, x.first), x.columns);
    if (owns(rows))
      each(u, x.columns, [&](int t, int j, float& a, float& b) {
        const float* const direct = written_gradient(i) + t * columns_of(c) + x.first + j;
        const Float2 y = read ? *reinterpret_cast<const Float2*>(direct) : Float2{0, 0};
        a = y.x + decay(last_token, t) * a;
        b = y.y + decay(last_token, t) * b;
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
    const bool norms = x.is_z && rates_depend_on_z(c), rows = corrected(x) || norms;
    const float by = has_gradient(i + 1) ? left(last_token) : 0.f;
    const Range readers = this->readers(i);
    const int first = rows || readers.first >= readers.end ? readers.first - 1 : readers.first;
    const float* const of_norms = own(c.grad_norms, key_rows(c)) + chunk * i;
    int q = first;
    do {  // q before the first reader: the chunk's keys
      const bool read = q >= readers.first;
      const int count = read ? queries(q) : rows ? keys(i) : 0;
      const Matrix gradient = (read ? read_gradient(q) : rows_gradient(i)).from(0, x.first);
      share(count, x.columns, [&](int t, int j) {
        const float part = read ? left(reader(t)) : norms ? left(t) : -left(t) * s.rate[t];
        const Float2 y = read || !norms ? gradient(t, j) : Float2{j == 0 ? of_norms[t] : 0.f, 0};
        return Float2{part * y.x, part * y.y};
      });
      add_to_state(x, i, read ? x_q(q) : x_k(i), count, q > first ? 1.f : by);
    } while (++q < readers.end);
  }
  // Sets s.x to f(row, column), which returns two neighbouring numbers; other warps may read s.x after a barrier.
  template <class F> FWP_DEVICE void share(int rows, int columns, F f) const {
    Strip<8> x;
    if (!owns(rows)) return;
    each(x, columns, [&](int r, int j, float& a, float& b) {
      const Float2 y = f(r, j);
      a = y.x, b = y.y;
    });
    put(s.x, x, columns);
  }
  // The gradient of the state before chunk i = by * carried + A^T s.x, where A has `rows` rows. It is only stored if
  // there is such a state.
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

  // ---- chunks ----

  // Runs for the slices first .. end - 1. The call with the slices of values also computes the contributions of
  // queries, and of what keys have read; the call with slice 0, which comes last, computes the gradients of gates.
  FWP_DEVICE void chunks_back(int i, int first, int end) const {
    load_chunk(i);
    const bool values = end > first_slice(c);
    if (values) set_zero(x_k_gradient(i), keys(i) * inputs_of(c));
    if (values && decays(c.rule)) set_zero(decay_gradient(i), decay_floats);
    sync_block();
    const Range queries = values ? readers(i) : Range{0, 0};
    float after[2] = {}, before[2] = {};  // (U dW^T).k and (dR W^T).k of own rows
    int n = queries.first;
    do {
      const bool read = n < queries.end, last = n + 1 >= queries.end;
      if (read) pairs_read(i, n);
      features_back(i, n, read, last && has_gradient(i + 1), last && values && corrects(c.rule) && has_state(i), first,
                    end, after, before);
    } while (++n < queries.end);
    if (decays(c.rule)) note_state(i, after, before, state_products(i, first, end));
    if (corrects(c.rule) && values) pairs_back(i, before);
    if (first == 0) gates_back(i);
    sync_block();
  }
  // Puts E = D G U^T of chunk n of queries in s.p.
  FWP_DEVICE void pairs_read(int i, int n) const {
    const int rows = queries(n), columns = keys(i);
    set_zero(x_q_gradient(n), rows * inputs_of(c));
    Strip<8> e;
    clear(e);
    add_gram(e, read_gradient(n), rows, written(i), columns, columns_of(c));
    if (decays(c.rule)) {
      Strip<8> p;
      clear(p);
      add_gram_of_features(p, x_q(n), rows, x_k(i), columns);
      note_pairs(p, e, i, rows, columns);
    }
    weigh(e, columns);
    if (owns(rows)) put(s.p, e, columns);
  }
  // For each tile of features: if chunk n of queries is `read`, dQ = E K + d (G W^T) of this chunk, and dK += E^T Q. dK
  // also gets its terms with the state after the chunk (`follows`) and with the state before it (`corrected`).
  FWP_DEVICE void features_back(int i, int n, bool read, bool follows, bool corrected, int first, int end,
                                float (&after)[2], float (&before)[2]) const {
    const int rows = queries(n), columns = keys(i);
    const bool old = read && has_state(i);
    float lefts[2] = {};
    FWP_ROLLED (int f = 0; f < feature_tiles(); ++f) {
      const Tile k = turn(s.p, 1);
      Strip<8> y, dk;
      clear(dk);
      stage_features(k, x_k(i), columns, f);
      FWP_ROLLED (int m = 0; m < 3; ++m) {  // dR W^T, U dW^T, G W^T
        clear(y);
        if (m == 0 ? !corrected : m == 1 ? !follows : !old) continue;
        const int column = m == 0 || (m == 1 && first > 0) ? first_value(c) : 0;
        const int end_column = m == 1 && end < slices_of(c) ? first_value(c) : columns_of(c);
        const Matrix of_tokens = m == 0 ? rows_gradient(i) : m == 1 ? written(i) : read_gradient(n);
        const Matrix of_features = m == 1 ? state_gradient(i + 1) : state(i);
        add_gram(y, of_tokens.from(0, column), m == 2 ? rows : columns, of_features.from(chunk * f, column), width(f),
                 end_column - column);
        if (m == 2) continue;
        float sums[2] = {};
        if (owns(columns) && (m == 0 || decays(c.rule))) add_row_products(sums, y, k, width(f));
        FWP_UNROLL (int r = 0; r < 2; ++r) {
          const int token = row + g + 8 * r;
          const float by = m == 0 ? -s.rate[token] * left(token) : decay(last_token, token);
          before[r] += m == 0 ? sums[r] : 0.f, after[r] += m == 0 ? 0.f : sums[r];  // arrays stay in registers
          FWP_UNROLL (int n = 0; n < 8; ++n)
            FWP_UNROLL (int h = 0; h < 2; ++h) dk[n][2 * r + h] += by * y[n][2 * r + h];
        }
      }
      if (read) stage_features(s.x, x_q(n), rows, f);
      arrived();
      if (read && owns(rows)) {
        if (old && decays(c.rule)) {
          add_row_products(lefts, y, s.x, width(f));
          each(y, width(f), [&](int t, int, float& a, float& b) {
            a *= left(reader(t));
            b *= left(reader(t));
          });
        }
        multiply<false, false>(y, s.p, k, columns, width(f));
      }
      if (read && owns(columns)) multiply<true, false>(dk, s.p, s.x, rows, width(f));
      FWP_ROLLED (int m = read ? 0 : 1; m < 2; ++m) {
        if (m == 1)
          FWP_UNROLL (int n = 0; n < 8; ++n)
            FWP_UNROLL (int h = 0; h < 4; ++h) y[n][h] = dk[n][h];
        if (owns(m == 0 ? rows : columns))
          give_features(m == 0 ? x_q_gradient(n) : x_k_gradient(i), m == 0 ? x_q(n) : x_k(i), s.y, y, f);
      }
      sync_block();
    }
    if (old && decays(c.rule)) note_lefts(lefts, i, rows);
  }
  // Adds to M of decay.cuh the gradients of the decays in P, for all pairs of a query and a key.
  FWP_DEVICE void note_pairs(Strip<8>& p, Strip<8>& e, int k, int rows, int columns) const {
    float* const square = reinterpret_cast<float*>(s.x.at);
    if (owns(rows))
      FWP_UNROLL (int n = 0; n < 8; ++n)
        FWP_UNROLL (int r = 0; r < 4; ++r) {
          const int t = row + g + 8 * (r / 2), j = 8 * n + 2 * this->t + r % 2;
          if (j < columns) square[t * square_ld + j] = p[n][r] * e[n][r];
        }
    sync_block();
    if (thread < columns)
      FWP_ROLLED (int t = 0; t < rows; ++t)
        decay_gradient(k)[reader(t) * decay_ld + thread] += square[t * square_ld + thread];
    sync_block();
  }
  // Adds to M the gradients of the decays of the state at the warp's rows of queries.
  FWP_DEVICE void note_lefts(const float (&lefts)[2], int k, int rows) const {
    share_rows(lefts, rows);
    if (thread == 0)
      FWP_ROLLED (int t = 0; t < rows; ++t) decay_gradient(k)[reader(t) * decay_ld + chunk] += s.sums[t];
    sync_block();
  }
  // Computes this thread's part of the inner product of dW and W.
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

  // Adds to M the gradients of the decays of keys and state at the end of the chunk, and of the state at the keys.
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

  // Computes the gradients that pass through L and the rates; `before` are the inner products (dR W^T).k.
  FWP_DEVICE void pairs_back(int i, const float (&before)[2]) const {
    const int rows = keys(i);
    const bool with_z = c.normalize_output && has_state(i);
    Strip<8> a, dL;
    float old[2];
    gram_of_keys(a, old, i);
    clear(dL);
    FWP_ROLLED (int n = first_slice(c); n < slices_of(c); ++n) {
      const Slice x = slice(n);
      add_gram(dL, rows_gradient(i).from(0, x.first), rows, written(i).from(0, x.first), rows, x.columns);
    }
    float rates[2] = {}, norms[2] = {};
    FWP_UNROLL (int n = 0; n < 8; ++n)
      FWP_UNROLL (int h = 0; h < 4; ++h) {
        const int token = row + g + 8 * (h / 2), j = 8 * n + 2 * t + h % 2;
        dL[n][h] = j < token ? -dL[n][h] : 0.f;
        rates[h / 2] += dL[n][h] * a[n][h] * decay(token, j);
      }
    sum_of_four(rates);
    FWP_UNROLL (int r = 0; r < 2; ++r) {
      const int token = row + g + 8 * r;
      rates[r] -= left(token) * before[r];
      if (!owns(rows)) continue;
      const float norm = c.normalize_output ? own(c.norms, key_rows(c))[chunk * i + token] : 1.f;
      norms[r] = c.normalize_output ? -rates[r] * s.rate[token] * norm : 0.f;
      if (t == 0) {
        own(c.grad_norms, key_rows(c))[chunk * i + token] = norms[r];
        put_gate(c.grad_beta, i, token, rates[r] * norm);
      }
    }
    FWP_UNROLL (int n = 0; n < 8; ++n)
      FWP_UNROLL (int h = 0; h < 4; ++h) dL[n][h] = dL[n][h] * s.rate[row + g + 8 * (h / 2)] + norms[h / 2];
    float* const M = decay_gradient(i);
    if (decays(c.rule) && owns(rows))
      FWP_UNROLL (int n = 0; n < 8; ++n)
        FWP_UNROLL (int h = 0; h < 4; ++h) {
          const int token = row + g + 8 * (h / 2), j = 8 * n + 2 * t + h % 2;
          if (j < token) M[token * decay_ld + j] += dL[n][h] * a[n][h];
        }
    if (decays(c.rule) && with_z) {  // decays of z in the denominators of keys
      const float products[2] = {norms[0] * old[0], norms[1] * old[1]};
      share_rows(products, rows);
      if (thread < rows) M[thread * decay_ld + chunk] += s.sums[thread];
      sync_block();
    }
    FWP_UNROLL (int n = 0; n < 8; ++n)
      FWP_UNROLL (int h = 0; h < 4; ++h) {
        const int token = row + g + 8 * (h / 2), j = 8 * n + 2 * t + h % 2;
        a[n][h] = j < token ? dL[n][h] * decay(token, j) : 0.f;
      }
    if (owns(rows)) put(s.p, a, rows);
    const float of_token[2] = {norms[0] * left(row + g), norms[1] * left(row + g + 8)};
    const auto tile = [&](int f) { return f % 2 ? s.y : s.x; };
    each_staged(
        feature_tiles(), [&](int f) { stage_features(tile(f), x_k(i), rows, f); },
        [&](int f) {
          if (!owns(rows)) return;
          Strip<8> dk;
          clear(dk);
          multiply<false, false>(dk, s.p, tile(f), rows, width(f));
          multiply<true, false>(dk, s.p, tile(f), rows, width(f));
          if (with_z) {
            const Matrix z = state(i).from(chunk * f, 0);
            FWP_UNROLL (int n = 0; n < 16; ++n) {
              const int j = 8 * (n / 2) + 2 * t + n % 2;
              const float of_feature = j < width(f) ? z(j, 0).x : 0.f;
              FWP_UNROLL (int r = 0; r < 2; ++r) dk[n / 2][2 * r + n % 2] += of_token[r] * of_feature;
            }
          }
          give_features(x_k_gradient(i), x_k(i), turn(s.p, 1), dk, f);
        });
  }
  FWP_DEVICE void put_gate(const Rows<float>& to, int i, int key, float x) const {
    const int token = chunk * i + key;
    if (token < c.sources) to.data[offset(to, token, c.sources)] = is_pad(token) ? 0.f : x;
  }
  // Computes dbeta from the products of dR with values and, under the gated rule, from the gradients of decays; dalpha
  // from the gradients of decays.
  FWP_DEVICE void gates_back(int i) const {
    if (!takes_beta(c.rule) && !takes_alpha(c.rule)) return;
    const int rows = keys(i);
    float* const M = decay_gradient(i);
    if (decays(c.rule)) find_kept_gradient(M, s.decay, s.keep, thread);
    float products[2] = {};
    FWP_ROLLED (int n = weighs_writes(c.rule) ? 0 : first_slice(c); n < slices_of(c) && owns(rows); ++n) {
      const Slice x = slice(n);
      fetch_values(s.x, x, i);
      Strip<8> dr;
      const Matrix dR = rows_gradient(i).from(0, x.first);
      each(dr, x.columns, [&](int t, int j, float& a, float& b) {
        const Float2 y = dR(t, j);
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
    if (takes_beta(c.rule))
      put_gate(c.grad_beta, i, thread, beta_gradient(c.rule, s.sums[thread] + through_rates, kept));
    if (takes_alpha(c.rule)) put_gate(c.grad_alpha, i, thread, kept);
  }
};

}  // namespace fwp::gpu
