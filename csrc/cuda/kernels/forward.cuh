// The forward of one head in chunks of 64 tokens. Every function is for one block of threads; between functions stand
// barriers or launches. With K, Q, V of the chunk, W the state before it, D as in decay.cuh, d its last column, e =
// D[end]:
//
//     keys      L_sj = rate_s D_sj k_s.k_j for j < s,  T = (I + L)^-1;  rate = beta, or beta / (z.k + eps) where the
//               output is normalised, z being what the key finds                                  (rules that correct)
//     walk      U = T (beta V - rate d (K W)), or beta V, or V;   then W <- d_end W + K^T (e U), from chunk to chunk
//     outputs   O = d (Q W) + (D Q K^T) U, divided by its column of z + eps where the output is normalised
//
// Not causal, all queries read after the last key: they meet the keys of the last chunk, with D[end] for each of them.
#pragma once

#include "inverse.cuh"
#include "tokens.cuh"

namespace fwp::gpu {

struct Forward : Tokens {
  using Tokens::Tokens;

  // ---- keys ----

  FWP_DEVICE void keys_of(int i) const {
    load_chunk(i);
    const int rows = keys(i);
    const bool with_z = c.normalize_output && has_state(i);
    Strip<8> a;
    Strip<2> kz;
    clear(a), clear(kz);
    each_staged(
        feature_tiles(),
        [&](int f) {
          stage(f % 2 ? s.p : s.x, phi_k(i).from(0, chunk * f), rows, width(f));
          if (with_z) stage(s.y + f % 2 * 16, state(i).from(chunk * f, 0), width(f), 16);
        },
        [&](int f) {
          const Tile k = f % 2 ? s.p : s.x;
          if (!owns(rows)) return;
          multiply<false, true>(a, k, k, width(f), rows);
          if (with_z) multiply<false, false>(kz, k, s.y + f % 2 * 16, width(f), 16);
        });
    each(a, rows, [&](int t, int j, float& x, float& y) {
      x = j < t ? x * decay(t, j) : 0.f;
      y = j + 1 < t ? y * decay(t, j + 1) : 0.f;
    });
    float found[2] = {}, norm[2] = {1, 1};
    row_sums(found, a, rows, [](int, int, float x, float y) { return x + y; });
    FWP_UNROLL (int r = 0; r < 2; ++r) {
      const int t = row + g + 8 * r;
      found[r] += left(t) * shuffle(kz[0][2 * r], lane & ~3);
      if (c.normalize_output) norm[r] = inverse_of(found[r] + c.eps);
      if (owns(rows) && this->t == 0) {
        own(c.rates, key_rows(c))[chunk * i + t] = s.beta[t] * norm[r];
        own(c.norms, key_rows(c))[chunk * i + t] = norm[r];
      }
    }
    const Inverse T{reinterpret_cast<float*>(s.y), lane, warp};
    if (owns(rows))
      each(a, rows, [&](int t, int j, float x, float y) {
        const float rate = s.beta[t] * of_row(norm, t);
        T.at(t, j) = rate * x;
        T.at(t, j + 1) = rate * y;
      });
    sync_block();
    T.run(rows);
    if (owns(rows))
      each(a, rows, [&](int t, int j, float, float) {
        inverse(i).put(t, j, {j <= t ? T.at(t, j) : 0.f, j + 1 <= t ? T.at(t, j + 1) : 0.f});
      });
    sync_block();
  }

  // ---- walk ----

  // Of so many tiles of features: all of them, or one in a block of its own (walks_of).
  FWP_DEVICE void walk(int number, const Tiles& tiles) const {
    const Slice x = slice(number, c.walk_width);
    const int chunks = chunks_of(c);
    if (c.initial_W) load_state(c.states, 0, c.initial_W, c.initial_z, x, tiles);
    FWP_ROLLED (int i = 0; i < chunks; ++i) {
      load_chunk(i);
      Strip<8> u;
      write(u, x, i, tiles.first == 0);
      if (i + 1 < chunks || c.W) change_state(u, x, i, tiles);
    }
    if (c.W) store_state(c.states, chunks, c.W, c.z, x, tiles);
    sync_block();
  }

  // Own rows of U, which `written` gets too if they are `stored`. Leaves shared memory free, but s.p only after a barrier.
  FWP_DEVICE void write(Strip<8>& u, const Slice& x, int i, bool stored) const {
    const int rows = keys(i);
    if (owns(rows)) fetch_values(s.p, x, i);
    clear(u);
    if (corrected(x) && has_state(i)) read_state(u, phi_k(i), rows, state(i).from(0, x.first), x.columns);
    fetched();
    if (owns(rows))
      each(u, x.columns, [&](int t, int j, float& a, float& b) {
        const Float2 v = value(x, s.p, t, j);
        const float by = strength(x, t), old = corrected(x) ? s.rate[t] * left(t) : 0.f;
        a = by * v.x - (old == 0 ? 0.f : old * a);
        b = by * v.y - (old == 0 ? 0.f : old * b);
      });
    if (corrected(x)) solve<false>(u, x, i);
    if (owns(rows) && stored) put(written(i).from(0, x.first), u, x.columns);
  }
  // u <- T u, or T^T u. Leaves shared memory free.
  template <bool TURNED> FWP_DEVICE void solve(Strip<8>& u, const Slice& x, int i) const {
    const int rows = keys(i);
    stage(s.y, inverse(i), rows, rows);
    if (owns(rows)) put(s.x, u, x.columns);
    arrived();
    clear(u);
    if (owns(rows)) multiply<TURNED, false>(u, s.y, s.x, rows, x.columns);
    sync_block();
  }
  FWP_DEVICE void change_state(Strip<8>& u, const Slice& x, int i, const Tiles& tiles) const {
    const int rows = keys(i);
    each(u, x.columns, [&](int t, int, float& a, float& b) {
      a *= decay(last_token, t);
      b *= decay(last_token, t);
    });
    if (owns(rows)) put(s.x, u, x.columns);
    const float by = left(last_token);
    const auto tile = [&](int n) { return n % 2 ? s.p : s.y; };
    each_staged(
        tiles.end - tiles.first,
        [&](int n) {
          const int f = tiles.first + n;
          stage(tile(n), phi_k(i).from(0, chunk * f), rows, width(f));
        },
        [&](int n) {
          const int f = tiles.first + n;
          if (!owns(width(f))) return;
          Strip<8> w;
          clear(w);
          multiply<true, false>(w, tile(n), s.x, rows, x.columns);
          const Matrix before = state(i).from(chunk * f, x.first), after = state(i + 1).from(chunk * f, x.first);
          each(w, x.columns, [&](int r, int j, float a, float b) {
            const Float2 old = has_state(i) ? before(r, j) : Float2{0, 0};
            after.put(r, j, {a + by * old.x, b + by * old.y});
          });
        });
  }
  // States from and to memory of the caller, (d_dot, d_value) and (d_dot). A barrier follows.
  FWP_DEVICE void load_state(const Pairs& to, int i, const float* W, const float* z, const Slice& x,
                             const Tiles& tiles) const {
    const int64_t first = int64_t(c.first_head + head) * c.d_dot;
    const Matrix state = state_of(to, i).from(0, x.first);
    each_entry(x, tiles, features_of(c), [&](int f, int j) {
      const auto at = [&](int j) {
        if (f >= c.d_dot) return 0.f;
        if (x.is_z) return j == 0 ? z[first + f] : 0.f;
        return x.values + j < c.d_value ? W[(first + f) * c.d_value + x.values + j] : 0.f;
      };
      state.put(f, j, {at(j), at(j + 1)});
    });
    sync_block();
  }
  FWP_DEVICE void store_state(const Pairs& from, int i, float* W, float* z, const Slice& x, const Tiles& tiles) const {
    const int64_t first = int64_t(c.first_head + head) * c.d_dot;
    const Matrix state = state_of(from, i).from(0, x.first);
    each_entry(x, tiles, c.d_dot, [&](int f, int j) {
      const Float2 y = state(f, j);
      if (x.is_z) {
        if (j == 0) z[first + f] = y.x;
        return;
      }
      float* const to = W + (first + f) * c.d_value + x.values;
      if (x.values + j < c.d_value) to[j] = y.x;
      if (x.values + j + 1 < c.d_value) to[j + 1] = y.y;
    });
  }
  // Calls f(feature, column) for every two neighbours of a state in these tiles, of so many features.
  template <class F> FWP_DEVICE void each_entry(const Slice& x, const Tiles& tiles, int features, F f) const {
    const int pairs = x.columns / 2, end = chunk * tiles.end < features ? chunk * tiles.end : features;
    FWP_ROLLED (int n = chunk * tiles.first * pairs + thread; n < end * pairs; n += threads)
      f(n / pairs, n % pairs * 2);
  }

  // ---- outputs ----

  // Which keys the queries of a chunk meet.
  FWP_DEVICE int met(int queries) const { return c.causal ? queries : chunks_of(c) - 1; }
  FWP_DEVICE float weight(int query, int key) const {
    return c.causal && key > query ? 0.f : decay(reader(query), key);
  }
  FWP_DEVICE void weigh(Strip<8>& p, int columns) const {
    each(p, columns, [&](int t, int j, float& a, float& b) {
      a *= weight(t, j);
      b *= weight(t, j + 1);
    });
  }

  // `back`: instead of O, the gradients of numerators and denominators go to grad_read. So it is in a backward.
  FWP_DEVICE void outputs(int i, bool back) const {
    const int rows = queries(i), k = met(i), columns = keys(k);
    load_chunk(k);
    if (!back || c.normalize_output) {
      Strip<8> p;
      clear(p);
      meet(p, phi_q(i), rows, phi_k(k), columns, features_of(c));
      weigh(p, columns);
      if (owns(rows)) put(s.p, p, columns);
    }
    float norm[2] = {1, 1}, products[2] = {};
    FWP_ROLLED (int n = 0; n < slices_of(c); ++n) {
      const Slice x = slice(n);
      Strip<8> y;
      clear(y);
      if (!back || c.normalize_output) read(y, x, i, k);
      if (x.is_z)
        FWP_UNROLL (int r = 0; r < 2; ++r) norm[r] = inverse_of(shuffle(y[0][2 * r], lane & ~3) + c.eps);
      else if (owns(rows) && back) put_read_gradient(y, products, norm, x, i);
      else if (owns(rows)) {
        each(y, x.columns, [&](int t, int, float& a, float& b) {
          const float by = of_row(norm, t);
          a = by == 0 ? 0.f : a * by;
          b = by == 0 ? 0.f : b * by;
        });
        give(c.out, s.x, y, chunk * i, c.targets, x);
      }
      sync_block();
    }
    if (back && c.normalize_output && owns(rows))
      FWP_UNROLL (int r = 0; r < 2; ++r)
        FWP_UNROLL (int j = 0; j < 2; ++j) {
          const float dz = j == 0 && t == 0 ? -products[r] * norm[r] * norm[r] : 0.f;
          read_gradient(i).put(row + g + 8 * r, 8 * j + 2 * t, {dz, 0});
        }
    sync_block();
  }
  // Own rows of O before the division. Leaves shared memory free, but for s.p.
  FWP_DEVICE void read(Strip<8>& y, const Slice& x, int i, int k) const {
    const int rows = queries(i);
    if (has_state(k)) {
      read_state(y, phi_q(i), rows, state(k).from(0, x.first), x.columns);
      each(y, x.columns, [&](int t, int, float& a, float& b) {
        a *= left(reader(t));
        b *= left(reader(t));
      });
    }
    stage(s.y, written(k).from(0, x.first), keys(k), x.columns);
    arrived();
    if (owns(rows)) multiply<false, false>(y, s.p, s.y, keys(k), x.columns);
    sync_block();
  }
  FWP_DEVICE Matrix read_gradient(int i) const {
    return own(c.grad_read, query_rows(c), columns_of(c)).from(chunk * i, 0);
  }
  // Own rows of the gradient of numerators; `products` gets the products of that of outputs with numerators y.
  FWP_DEVICE void put_read_gradient(Strip<8>& y, float (&products)[2], const float (&norm)[2], const Slice& x,
                                    int i) const {
    fetch(s.x, c.grad_out, chunk * i, c.targets, x, [](int) { return true; });
    fetched();
    row_sums(products, y, x.columns, [&](int t, int j, float& a, float& b) {
      const Float2 g = passing(s.x, t, j);
      const float product = a * g.x + b * g.y, by = of_row(norm, t);
      a = by * g.x, b = by * g.y;
      return product;
    });
    put(read_gradient(i).from(0, x.first), y, x.columns);
  }
};

}  // namespace fwp::gpu
