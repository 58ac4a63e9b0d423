// The forward of one head in chunks of 64 tokens. Each function is run by one block of threads; barriers or launches
// separate the functions. With K, Q, V of the chunk, W the state before it, D as in decay.cuh, d its last column, e =
// D[end]:
//
//     keys      L_sj = rate_s D_sj k_s.k_j for j < s,  T = (I + L)^-1;  rate = beta, or beta / (z.k + eps) where the
//               output is normalised, z being what the key finds                                  (rules that correct)
//     walk      U = T (beta V - rate d (K W)), or beta V, or V;   then W <- d_end W + K^T (e U), from chunk to chunk
//     outputs   O = d (Q W) + (D Q K^T) U, divided by its column of z + eps where the output is normalised
//
// If not causal, all queries read after the last key: they read the keys of the last chunk with the weights D[end], and
// everything earlier from the state.
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
    Strip<8> a;
    float old[2];
    gram_of_keys(a, old, i);
    each(a, rows, [&](int t, int j, float& x, float& y) {
      x = j < t ? x * decay(t, j) : 0.f;
      y = j + 1 < t ? y * decay(t, j + 1) : 0.f;
    });
    float found[2] = {}, norm[2] = {1, 1};
    row_sums(found, a, rows, [](int, int, float x, float y) { return x + y; });
    FWP_UNROLL (int r = 0; r < 2; ++r) {
      const int t = row + g + 8 * r;
      found[r] += left(t) * old[r];
      if (c.normalize_output) norm[r] = inverse_of(found[r] + c.eps);
      if (owns(rows) && this->t == 0) {
        own(c.rates, key_rows(c))[chunk * i + t] = s.beta[t] * norm[r];
        own(c.norms, key_rows(c))[chunk * i + t] = norm[r];
      }
    }
    const Inverse T{reinterpret_cast<float*>(s.y.at), lane, warp};
    if (owns(rows))
      each(a, rows, [&](int t, int j, float x, float y) {
        const float rate = s.beta[t] * of_row(norm, t);
        T.at(t, j) = rate * x;
        T.at(t, j + 1) = rate * y;
      });
    sync_block();
    T.run(rows);
    if (owns(rows)) {
      each(a, rows, [&](int t, int j, float& x, float& y) { x = T.at(t, j), y = T.at(t, j + 1); });
      put(inverse(i), a, rows);
    }
    sync_block();
  }

  // ---- walk ----

  // Walks over the given tiles of features: all tiles, or one tile per block (walks_of).
  FWP_DEVICE void walk(int number, const Range& tiles) const {
    const Slice x = slice(number, c.walk_width);
    const int chunks = chunks_of(c);
    if (c.initial_W) load_state(state(0), c.initial_W, c.initial_z, x, tiles, true);
    FWP_ROLLED (int i = 0; i < chunks; ++i) {
      load_chunk(i);
      Strip<8> u;
      write(u, x, i, tiles.first == 0);
      if (i + 1 < chunks || c.W) change_state(u, x, i, tiles);
    }
    if (c.W) store_state(c.W, c.z, x, tiles, false);
  }

  // Computes the warp's rows of U, and copies them to `written` if `stored`. Leaves shared memory free, but s.p only
  // after a barrier.
  FWP_DEVICE void write(Strip<8>& u, const Slice& x, int i, bool stored) const {
    const int rows = keys(i);
    if (owns(rows)) fetch_values(s.p, x, i);
    clear(u);
    if (corrected(x) && has_state(i)) read_state(u, x_k(i), rows, state(i).from(0, x.first), x.columns);
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
  template <bool TRANSPOSED> FWP_DEVICE void solve(Strip<8>& u, const Slice& x, int i) const {
    const int rows = keys(i);
    stage(s.y, inverse(i), rows, rows);
    if (owns(rows)) put(s.x, u, x.columns);
    arrived();
    clear(u);
    if (owns(rows)) multiply<TRANSPOSED, false>(u, s.y, s.x, rows, x.columns);
    sync_block();
  }
  FWP_DEVICE void change_state(Strip<8>& u, const Slice& x, int i, const Range& tiles) const {
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
          stage_features(tile(n), x_k(i), rows, f);
        },
        [&](int n) {
          const int f = tiles.first + n;
          if (!owns(width(f))) return;
          Strip<8> w;
          clear(w);
          multiply<true, false>(w, tile(n), s.x, rows, x.columns);
          carry(w, x, f, has_state(i) ? by : 0.f);
          if (i + 1 < chunks_of(c)) put(state(i + 1).from(chunk * f, x.first), w, x.columns);
        });
  }
  // The state that the walk carries from chunk to chunk; each thread reads only numbers that it wrote itself.
  FWP_DEVICE float* carried(int feature, int column) const {
    float* const head = own(c.carried, int64_t(features_of(c)) * columns_of(c));
    return head + int64_t(feature) * columns_of(c) + column;
  }
  // For the warp's rows of a tile of features: w += by * carried, then carried = w.
  FWP_DEVICE void carry(Strip<8>& w, const Slice& x, int f, float by) const {
    Float2* const first = reinterpret_cast<Float2*>(carried(chunk * f + row + g, x.first + 2 * t));
    FWP_UNROLL (int n = 0; n < 8; ++n)
      if (8 * n < x.columns)
        FWP_UNROLL (int r = 0; r < 2; ++r) {
          Float2& W = first[4 * r * columns_of(c) + 4 * n];
          if (by != 0) w[n][2 * r] += by * W.x, w[n][2 * r + 1] += by * W.y;
          W = {w[n][2 * r], w[n][2 * r + 1]};
        }
  }
  // Calls f(tile of features, place) for the warp's rows of these tiles; place(row, column) is the address of a number
  // in the caller's W (d_dot, d_value) or z (d_dot), or null.
  template <class F> FWP_DEVICE void each_tile(float* W, float* z, const Slice& x, const Range& tiles, F f) const {
    const int64_t first = int64_t(c.first_head + head) * c.d_dot;
    FWP_ROLLED (int n = tiles.first; n < tiles.end; ++n) {
      if (!owns(width(n))) continue;
      const int columns = x.is_z ? 1 : c.d_value - x.values;
      float* rows[2];
      FWP_UNROLL (int r = 0; r < 2; ++r) {
        const int feature = feature_of(c, chunk * n + row + g + 8 * r);
        float* const to = x.is_z ? z + first + feature : W + (first + feature) * c.d_value + x.values;
        rows[r] = feature < 0 ? nullptr : to;
      }
      f(n, [&](int r, int j) -> float* {
        float* const to = r == row + g ? rows[0] : rows[1];
        return to && j < columns ? to + j : nullptr;
      });
    }
  }
  // Loads a state. z is in two columns (equal if `twice`), whose gradients are added up in the end. Ends with a
  // barrier.
  FWP_DEVICE void load_state(const Matrix& to, const float* W, const float* z, const Slice& x, const Range& tiles,
                             bool twice) const {
    each_tile(const_cast<float*>(W), const_cast<float*>(z), x, tiles, [&](int f, auto place) {
      Strip<8> w;
      float* const all = carried(chunk * f, x.first);
      each(w, x.columns, [&](int r, int j, float& a, float& b) {
        const float *const first = place(r, j), *const second = place(r, j + 1);
        a = first ? *first : 0.f, b = second ? *second : twice && x.is_z ? a : 0.f;
        *reinterpret_cast<Float2*>(all + r * columns_of(c) + j) = {a, b};
      });
      put(to.from(chunk * f, x.first), w, x.columns);
    });
    sync_block();
  }
  FWP_DEVICE void store_state(float* W, float* z, const Slice& x, const Range& tiles, bool summed) const {
    each_tile(W, z, x, tiles, [&](int f, auto place) {
      Strip<8> w;
      const float* const all = carried(chunk * f, x.first);
      each(w, x.columns, [&](int r, int j, float&, float&) {
        const Float2 y = *reinterpret_cast<const Float2*>(all + r * columns_of(c) + j);
        float *const first = place(r, j), *const second = place(r, j + 1);
        if (first) *first = summed && x.is_z ? y.x + y.y : y.x;
        if (second) *second = y.y;
      });
    });
  }

  // ---- outputs ----

  // The chunk of keys whose products with a chunk of queries are computed.
  FWP_DEVICE int key_chunk_of(int queries) const { return c.causal ? queries : chunks_of(c) - 1; }
  FWP_DEVICE float weight(int query, int key) const {
    return c.causal && key > query ? 0.f : decay(reader(query), key);
  }
  FWP_DEVICE void weigh(Strip<8>& p, int columns) const {
    each(p, columns, [&](int t, int j, float& a, float& b) {
      a *= weight(t, j);
      b *= weight(t, j + 1);
    });
  }

  // With `back`, for the backward pass: stores the gradients of numerators and denominators in grad_read instead of O,
  // and adds what they contribute to the gradient of U.
  FWP_DEVICE void outputs(int i, bool back) const {
    const int rows = queries(i), k = key_chunk_of(i), columns = keys(k);
    load_chunk(k);
    const bool reads = !back || c.normalize_output;
    float norm[2] = {1, 1}, products[2] = {};
    Strip<8> y;
    clear(y);
    read(y, norm, i, k, reads);
    FWP_ROLLED (int n = first_slice(c); n < slices_of(c); ++n) {
      const Slice x = slice(n);
      if (reads) {
        if (n > first_slice(c)) {
          clear(y);
          if (has_state(k)) read_state(y, x_q(i), rows, state(k).from(0, x.first), x.columns);
        }
        stage(s.y, written(k).from(0, x.first), columns, x.columns);
        each(y, x.columns, [&](int t, int, float& a, float& b) {
          a *= left(reader(t));
          b *= left(reader(t));
        });
        arrived();
        if (owns(rows)) multiply<false, false>(y, s.p, s.y, columns, x.columns);
        sync_block();
      }
      if (back) {
        if (owns(rows)) put_read_gradient(y, products, norm, x, i);
        written_back(x, i, k);
        continue;
      }
      if (owns(rows)) {
        each(y, x.columns, [&](int t, int, float& a, float& b) {
          const float by = of_row(norm, t);
          a = by == 0 ? 0.f : a * by;
          b = by == 0 ? 0.f : b * by;
        });
        give(c.out, s.x, y, chunk * i, c.targets, x);
      }
      sync_block();
    }
    if (!back || !c.normalize_output) return;
    if (owns(rows)) put_norm_gradient(products, norm, i);
    if (weighs_writes(c.rule)) written_back(slice(0), i, k);  // else z's column has no gate
    else sync_block();
  }
  // dU = P^T G for a slice of gradients G in s.y.
  FWP_DEVICE void written_back(const Slice& x, int i, int k) const {
    sync_block();
    if (owns(keys(k))) {
      Strip<8> u;
      clear(u);
      multiply<true, false>(u, s.p, s.y, queries(i), x.columns);
      put(written_gradient(k) + x.first, columns_of(c), u, x.columns, i > readers(k).first);
    }
    sync_block();
  }
  FWP_DEVICE float* written_gradient(int i) const {
    return own(c.grad_written, int64_t(key_rows(c)) * columns_of(c)) + int64_t(chunk) * i * columns_of(c);
  }
  // Computes P in s.p and, for the warp's rows of queries, Q W of the first slice of values and the inverses of
  // denominators. Leaves all other shared memory free.
  FWP_DEVICE void read(Strip<8>& y, float (&norm)[2], int i, int k, bool with_state) const {
    const int rows = queries(i), columns = keys(k);
    const Slice x = slice(first_slice(c));
    const bool reads = with_state && has_state(k), with_z = reads && c.normalize_output;
    const Tile phi_q = s.x, phi_k = turn(s.x, 1), W = s.y, z = turn(s.y, 1);
    Strip<8> p;
    Strip<2> qz;
    Units<8> p_units, y_units;
    Units<2> z_units;
    clear(p), clear(qz);
    begin<8>(p_units), begin<8>(y_units), begin<2>(z_units);
    FWP_ROLLED (int f = 0; f < feature_tiles(); ++f) {
      if (reads) stage(W, state(k).from(chunk * f, x.first), width(f), x.columns);
      if (with_z) stage(z, state(k).from(chunk * f, 0), width(f), 16);
      stage_features(phi_q, x_q(i), rows, f);
      stage_features(phi_k, x_k(k), columns, f);
      arrived();
      if (owns(rows)) {
        multiply<false, true>(p, p_units, phi_q, phi_k, width(f), columns);
        if (reads) multiply<false, false>(y, y_units, phi_q, W, width(f), x.columns);
        if (with_z) multiply<false, false>(qz, z_units, phi_q, z, width(f), 16);
      }
      sync_block();
    }
    end<8>(p, p_units, columns), end<8>(y, y_units, x.columns), end<2>(qz, z_units, 16);
    weigh(p, columns);
    if (c.normalize_output) round(p, columns);  // so that the output for a single key is exactly its value
    if (owns(rows)) put(s.p, p, columns);
    if (!c.normalize_output) return;
    const Matrix of_z = this->written(k);
    const auto written = [&](int key) { return weighs_writes(c.rule) ? of_z(key, 0).x : 1.f; };
    float sums[2] = {};
    row_sums(sums, p, columns, [&](int, int j, float a, float b) { return a * written(j) + b * written(j + 1); });
    FWP_UNROLL (int r = 0; r < 2; ++r) {
      const float old = with_z ? left(reader(row + g + 8 * r)) * shuffle(qz[0][2 * r], lane & ~3) : 0.f;
      norm[r] = inverse_of(sums[r] + old + c.eps);
    }
  }
  FWP_DEVICE Matrix read_gradient(int i) const {
    return own(c.grad_read, query_rows(c), columns_of(c)).from(chunk * i, 0);
  }
  // Stores the warp's rows of the gradient of numerators, and adds its products with the numerators y to `products`.
  FWP_DEVICE void put_read_gradient(Strip<8>& y, float (&products)[2], const float (&norm)[2], const Slice& x,
                                    int i) const {
    fetch(s.x, c.grad_out, chunk * i, c.targets, x, [](int) { return true; });
    fetched();
    Strip<8> gradient;
    each(gradient, x.columns, [&](int t, int j, float& a, float& b) {
      const Float2 g = passing(s.x, t, j);
      const float by = of_row(norm, t);
      a = by * g.x, b = by * g.y;
    });
    round(gradient, x.columns);
    FWP_UNROLL (int n = 0; n < 8; ++n)
      FWP_UNROLL (int i = 0; i < 4; ++i) y[n][i] *= gradient[n][i];
    row_sums(products, y, x.columns, [](int, int, float a, float b) { return a + b; });
    put(read_gradient(i).from(0, x.first), gradient, x.columns);
    put(s.y, gradient, x.columns);
  }
  // Stores the gradient of the denominators. It is later subtracted from products of rounded gradients, so it is
  // computed from the same rounded gradients, and is kept with 22 bits, in two columns.
  FWP_DEVICE void put_norm_gradient(const float (&products)[2], const float (&norm)[2], int i) const {
    Strip<2> z, high;
    clear(z), clear(high);
    if (t == 0)
      FWP_UNROLL (int r = 0; r < 2; ++r) high[0][2 * r] = z[0][2 * r] = -products[r] * norm[r];
    round(high, 16);
    FWP_UNROLL (int r = 0; r < 2; ++r) z[0][2 * r + 1] = z[0][2 * r] - high[0][2 * r];
    put(read_gradient(i), z, 16);
    put(s.y, z, 16);
  }
};

}  // namespace fwp::gpu
