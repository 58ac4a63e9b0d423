// The first step of the backward of one head, outputs_back of backward.cuh, and where the gradients of all steps are.
#pragma once

#include "forward.cuh"

namespace fwp::gpu {

struct OutputsBack : Forward {
  using Forward::Forward;

  FWP_DEVICE Matrix rows_gradient(int i) const { return of_keys(c.grad_rows, i); }
  FWP_DEVICE Matrix state_gradient(int i) const { return state_of(c.grad_states, i - 1); }
  FWP_DEVICE bool has_gradient(int i) const { return i < chunks_of(c) || c.grad_W; }  // of the state before chunk i
  FWP_DEVICE float* written_gradient(int i) const {
    return own(c.grad_written, int64_t(key_rows(c)) * columns_of(c)) + int64_t(chunk) * i * columns_of(c);
  }
  FWP_DEVICE float* x_q_gradient(int i) const {
    return own(c.grad_x_q, int64_t(query_rows(c)) * inputs_of(c)) + int64_t(chunk) * i * inputs_of(c);
  }
  FWP_DEVICE float* x_k_gradient(int i) const {
    return own(c.grad_x_k, int64_t(key_rows(c)) * inputs_of(c)) + int64_t(chunk) * i * inputs_of(c);
  }
  FWP_DEVICE float* decay_gradient(int i) const {
    return own(c.grad_decay, int64_t(chunks_of(c)) * decay_floats) + int64_t(i) * decay_floats;
  }
  // Own rows to a matrix of floats: stored, or added to what it has.
  template <int N> FWP_DEVICE void put(float* to, int ld, Strip<N>& x, int columns, bool added) const {
    FWP_UNROLL (int n = 0; n < N; n += 4) {  // some loads at a time, since no load may pass a store
      Strip<4>& some = *reinterpret_cast<Strip<4>*>(x + n);
      const auto at = [&](int r, int j) -> Float2& { return *reinterpret_cast<Float2*>(to + r * ld + 8 * n + j); };
      if (added)
        each(some, columns - 8 * n, [&](int r, int j, float& a, float& b) {
          const Float2 before = at(r, j);
          a += before.x, b += before.y;
        });
      each(some, columns - 8 * n, [&](int r, int j, float a, float b) { at(r, j) = {a, b}; });
    }
  }
  using Forward::put;
  // sums += the products of own rows with those of a tile, that of row with row.
  FWP_DEVICE void meet_rows(float (&sums)[2], Strip<8>& x, const Tile& with, int columns) const {
    row_sums(sums, x, columns, [&](int r, int j, float a, float b) {
      const uint32_t y = word(with.at + r * tile_ld + j);
      return with.powers[r / 16 * powers_ld + j / 16] * (a * first_half(y) + b * second_half(y));
    });
  }
  // Adds what own rows y of the gradient of a tile of features give to the gradient of x, through own rows of a tile that
  // no other warp uses.
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
    // A lane takes half of a row back.
    const float upper = shuffle(power[0], 4 * (lane % 8)), lower = shuffle(power[1], 4 * (lane % 8));
    const int half = lane / 16, own = row + lane % 16, part = 2 * f + half;
    const float by = undone(lane % 16 < 8 ? upper : lower) * square_root(x.at.powers[x.block(row, 0)]);
    each_group(c, part, [&](int b, int j, int column, bool there) {
      uint32_t here[4] = {}, before[5] = {};
      const uint16_t* const gradient = through.at + own * tile_ld + 32 * half + column;
      if (there) back_group(here, before, x.number(own, before_x(c) + b), j, gradient, c.nu % 2 == 0);
      float* const at = to + own * inputs_of(c) + before_x(c) + b;
      FWP_ROLLED (int i = 0; i < 2; ++i) {  // neighbours may be those of the other half
        if (i == half && there) add_words(at, here, by), add_words(at - window_of(j), before, by);
        sync_warp();
      }
    });
  }

  // Of the queries that meet the chunk's keys.
  FWP_DEVICE void outputs_back(int k) const {
    load_chunk(k);
    const bool last = k == chunks_of(c) - 1;
    const int begin = c.causal ? k : 0, count = c.causal ? 1 : last ? query_chunks_of(c) : 0;
    if (decays(c.rule)) set_zero(decay_gradient(k), decay_floats);
    set_zero(x_k_gradient(k), keys(k) * inputs_of(c));
    sync_block();
    if (count == 0 || c.targets == 0) return nothing_read(k);
    FWP_ROLLED (int i = begin; i < begin + count; ++i) outputs_back(k, i, i > begin);
  }
  FWP_DEVICE void nothing_read(int k) const {
    set_zero(written_gradient(k), keys(k) * columns_of(c));
    sync_block();
  }
  FWP_DEVICE void set_zero(float* x, int count) const {
    FWP_ROLLED (int i = thread; i < count; i += threads) x[i] = 0;
  }
  FWP_DEVICE void outputs_back(int k, int i, bool added) const {
    const int rows = queries(i), columns = keys(k);
    set_zero(x_q_gradient(i), rows * inputs_of(c));
    Strip<8> p, e;
    clear(p), clear(e);
    meet_features(p, x_q(i), rows, x_k(k), columns);
    meet(e, read_gradient(i), rows, written(k), columns, columns_of(c));
    if (decays(c.rule)) note_pairs(p, e, k, rows, columns);
    weigh(p, columns), weigh(e, columns);

    if (owns(rows)) put(s.p, p, columns);
    FWP_ROLLED (int n = 0; n < slices_of(c); ++n) {
      const Slice x = slice(n);
      stage(s.x, read_gradient(i).from(0, x.first), rows, x.columns);
      arrived();
      Strip<8> u;
      clear(u);
      if (owns(columns)) {
        multiply<true, false>(u, s.p, s.x, rows, x.columns);
        put(written_gradient(k) + x.first, columns_of(c), u, x.columns, added);
      }
      sync_block();
    }

    if (owns(rows)) put(s.p, e, columns);
    float lefts[2] = {};
    FWP_ROLLED (int f = 0; f < feature_tiles(); ++f) {
      Strip<8> dq;
      clear(dq);
      if (has_state(k)) meet(dq, read_gradient(i), rows, state(k).from(chunk * f, 0), width(f), columns_of(c));
      stage_features(s.x, x_k(k), columns, f);
      stage_features(s.y, x_q(i), rows, f);
      arrived();
      if (decays(c.rule) && has_state(k) && owns(rows)) {
        meet_rows(lefts, dq, s.y, width(f));
        each(dq, width(f), [&](int t, int, float& a, float& b) {
          a *= left(reader(t));
          b *= left(reader(t));
        });
      }
      if (owns(rows)) {
        multiply<false, false>(dq, s.p, s.x, columns, width(f));
        give_features(x_q_gradient(i), x_q(i), turn(s.p, 1), dq, f);
      }
      if (owns(columns)) {
        Strip<8> dk;
        clear(dk);
        multiply<true, false>(dk, s.p, s.y, rows, width(f));
        give_features(x_k_gradient(k), x_k(k), turn(s.p, 1), dk, f);
      }
      sync_block();
    }
    if (decays(c.rule) && has_state(k)) note_lefts(lefts, k, rows);
  }
  // Adds what decays of pairs get: M of decay.cuh.
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
  // Adds own rows' gradients of what was left of the state.
  FWP_DEVICE void note_lefts(const float (&lefts)[2], int k, int rows) const {
    share_rows(lefts, rows);
    if (thread == 0)
      FWP_ROLLED (int t = 0; t < rows; ++t) decay_gradient(k)[reader(t) * decay_ld + chunk] += s.sums[t];
    sync_block();
  }
  // Numbers of own rows, for all to read. Leaves the barrier before others write s.sums to the reader.
  FWP_DEVICE void share_rows(const float (&x)[2], int rows) const {
    if (owns(rows) && t == 0) s.sums[row + g] = x[0], s.sums[row + g + 8] = x[1];
    sync_block();
  }
};

}  // namespace fwp::gpu
