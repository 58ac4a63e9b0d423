// Features of queries and keys, 64 columns (a slab) at a time, in shared memory. The columns of a slab can be in any
// order, because only sums over features are needed. Each row is scaled by a power of two.
#pragma once

#include "dpfp.cuh"
#include "number.cuh"
#include "tokens.cuh"

namespace fwp::gpu {

FWP_BOTH int x_ld(const Call& c) { return before_x(c) + c.d_key; }

// A feature of an elementwise map, and the gradient of its input.
FWP_DEVICE float function_of(Map map, float x) {
#define FWP_CASE(name)                                                                                                 \
  if constexpr (Map::name != Map::identity)                                                                            \
    if (map == Map::name) return Function<Map::name>::value<OfFloats>(x);
  FWP_ELEMENTWISE(FWP_CASE)
#undef FWP_CASE
  return x;
}
FWP_DEVICE float function_back(Map map, float g, float f) {
#define FWP_CASE(name)                                                                                                 \
  if constexpr (Map::name != Map::identity)                                                                            \
    if (map == Map::name) return Function<Map::name>::back<OfFloats>(g, f);
  FWP_ELEMENTWISE(FWP_CASE)
#undef FWP_CASE
  return g;
}
FWP_DEVICE void unpack(Type type, const Eight& x, float (&y)[8]) {
  if (type == Type::float16)
    FWP_UNROLL (int n = 0; n < 4; ++n) split_halves(x.w[n], y[2 * n], y[2 * n + 1]);
  else
    FWP_UNROLL (int n = 0; n < 8; ++n) y[n] = float_of(n % 2 ? x.w[n / 2] & 0xffff0000u : x.w[n / 2] << 16);
}
FWP_DEVICE Eight packed(Type type, const float (&y)[8], float by) {  // y times `by`
  Eight z;
  if (type == Type::float16)
    FWP_UNROLL (int n = 0; n < 4; ++n) z.w[n] = pack_halves(by * y[2 * n], by * y[2 * n + 1]);
  else
    FWP_UNROLL (int n = 0; n < 4; ++n) z.w[n] = pack_bfloat16s(by * y[2 * n], by * y[2 * n + 1]);
  return z;
}

// Eight floats at an address that is a multiple of 16.
FWP_DEVICE void load_floats(const float* from, float (&y)[8]) {
  FWP_UNROLL (int half = 0; half < 2; ++half) {
    const Eight x = eight(from + 4 * half);
    FWP_UNROLL (int n = 0; n < 4; ++n) y[4 * half + n] = float_of(x.w[n]);
  }
}
FWP_DEVICE void store_floats(float* to, const float (&y)[8], float by) {
  FWP_UNROLL (int half = 0; half < 2; ++half) {
    Eight x;
    FWP_UNROLL (int n = 0; n < 4; ++n) x.w[n] = bits_of(by * y[4 * half + n]);
    put_eight(to + 4 * half, x);
  }
}

// The larger magnitudes of halves or bfloat16s. Bits of bfloat16s are compared as if they were halves, which gives the
// same order; numbers whose bits would be NaN as halves are ignored.
FWP_DEVICE uint32_t larger_magnitudes(uint32_t most, const Eight& x) {
  FWP_UNROLL (int n = 0; n < 4; ++n) most = larger_numbers(most, x.w[n] & 0x7fff7fffu);
  return most;
}
FWP_DEVICE float magnitude(Type type, uint32_t most) {
  const uint32_t x = larger_numbers(most, most >> 16);
  return type == Type::float16 ? first_half(x) : float_of(x << 16);
}
// Convert numbers of the call's type to halves: `multiplied` by any factor, `scaled` by a power of two.
FWP_DEVICE Eight multiplied(Type type, const Eight& x, float by) {
  float y[8];
  unpack(type, x, y);
  return packed(Type::float16, y, by);
}
FWP_DEVICE Eight scaled(Type type, const Eight& x, float power) {
  if (type == Type::float16) return multiplied(type, x, power);
  const uint32_t twice = bits_of(power) | bits_of(power) >> 16;
  Eight y;
  FWP_UNROLL (int n = 0; n < 4; ++n) y.w[n] = halves_of_bfloat16s(x.w[n], twice);
  return y;
}

// A block of threads processes a head with ROWS queries and ROWS keys, padded with zeros. Each thread computes the
// features of a row.
template <int ROWS, bool DPFP> struct Slabs : Head, Fragments {
  static constexpr int threads = 2 * ROWS, pieces = ROWS * 8 / threads;
  static constexpr int most_power = 1;  // x, or other features, are below 2^1
  uint16_t *x, *phi;  // queries, then keys
  float *of_q, *of_k;  // factors that undo the scaling of features; of_k follows of_q

  const int parts, ld_x;  // of DPFP: parts of features; columns of x
  uint16_t *own_x, *own_phi;  // this thread's row

  FWP_DEVICE Slabs(const Call& call, int head) : Head(call, head), parts(parts_of(call)), ld_x(x_ld(call)) {}
  FWP_DEVICE void find_own_rows() { own_x = row_of_x(thread), own_phi = phi + thread * tile_ld; }

  // For copies of 64 columns: each thread copies 8 columns of every `across`th row.
  static constexpr int across = threads / 8;
  FWP_DEVICE int first_row() const { return thread >> 3; }
  FWP_DEVICE int column() const { return (thread & 7) * 8; }
  template <class V> FWP_DEVICE Eight at(const Rows<V>& rows, int token, int length, int column) const {
    return eight(static_cast<const uint16_t*>(rows.data) + offset(rows, token, length) + column);
  }
  template <class V> FWP_DEVICE int64_t step(const Rows<V>& rows, int tokens) const {
    return tokens * (reversed ? -rows.time : rows.time);
  }
  FWP_DEVICE bool is_there(int r, bool key) const { return key ? r < c.sources && !is_pad(r) : r < c.targets; }
  // Starts to copy 64 columns of all rows, beginning with column `first`; columns and rows that do not exist are 0.
  FWP_DEVICE void start_rows(uint16_t* to, int ld, const Rows<const void>& from, bool key, int first, int width) const {
    if (first + column() >= width && ld != tile_ld) return;
    const int length = key ? c.sources : c.targets, left = first + column() < width ? length - first_row() : 0;
    uint32_t there = ~(~0u << (((left > 0 ? left : 0) + across - 1) / unsigned(across)));  // a bit for each piece
    if (key && c.key_padding_mask.data)
      FWP_ROLLED (int m = 0; m < pieces; ++m)
        if ((there >> m & 1) && is_pad(first_row() + m * across)) there ^= 1u << m;
    const uint16_t* piece =
        static_cast<const uint16_t*>(from.data) + offset(from, first_row(), length) + first + column();
    const int64_t further = step(from, across);
    to += first_row() * ld + column();
    FWP_UNROLL (int m = 0; m < pieces; ++m, to += across * ld, piece += further)
      start_copy(to, piece, there << (4 - m) & 16);
  }
  FWP_DEVICE uint16_t* row_of_x(int r) const { return x + r * ld_x + (ld_x - c.d_key); }
  FWP_DEVICE void start_slab(uint16_t* to, int ld, int first) const {
    FWP_ROLLED (int key = 0; key < 2; ++key) start_rows(to + key * ROWS * ld, ld, key ? c.k : c.q, key, first, c.d_key);
  }
  // Calls f(row, x) for 8 columns x of each row that this thread copies, queries before keys, in slab s of float inputs;
  // x is 0 where there is no input.
  template <class F> FWP_DEVICE void each_eight_floats(int s, F f) const {
    const int first = chunk * s + column();
    FWP_ROLLED (int row = first_row(); row < 2 * ROWS; row += across) {
      const bool key = row >= ROWS;
      const int token = row - (key ? ROWS : 0);
      const Rows<const void>& from = key ? c.k : c.q;
      float x[8] = {};
      if (first < c.d_key && is_there(token, key))
        load_floats(static_cast<const float*>(from.data) + offset(from, token, key ? c.sources : c.targets) + first, x);
      f(row, x);
    }
  }
  // Copies 64 columns of inputs to the place of their features, for a map that is a function of one number.
  FWP_DEVICE void fetch(int s) const {
    start_slab(phi, tile_ld, chunk * s);
    copies_arrived();
    sync_block();
  }

  FWP_DEVICE void start_inputs() const {
    if constexpr (DPFP)
      FWP_ROLLED (int first = 0; first < c.d_key; first += chunk) start_slab(row_of_x(0) + first, ld_x, first);
  }
  // Computes the power of two of each row; under DPFP, also scales the copied x by it. Needs a barrier before it. Each
  // thread has a row, as in `make`.
  FWP_DEVICE void scale_inputs() const {
    uint16_t* const end = own_x + c.d_key;
    float largest;
    if constexpr (DPFP) {
      uint32_t most = 0;
      FWP_ROLLED (const uint16_t* x = own_x; x < end; x += 8) most = larger_magnitudes(most, eight(x));
      largest = magnitude(c.x_type, most);
    } else largest = c.x_type == Type::float32 ? largest_float() : largest_feature();
    const float power = power_for(largest, most_power), back = undone(power);
    const bool key = thread >= ROWS;
    of_q[thread] = !is_there(thread - (key ? ROWS : 0), key) ? 0.f : DPFP ? back * back : back;
    if constexpr (DPFP) {
      FWP_ROLLED (uint16_t* x = own_x; x < end; x += 8) put_eight(x, scaled(c.x_type, eight(x), power));
      FWP_ROLLED (int i = -8; i >= c.d_key - ld_x; i -= 8) {  // the copies of x before it
        Eight y = eight(end + i);
        FWP_UNROLL (int n = 0; n < 4; ++n) y.w[n] ^= 0x80008000u;
        put_eight(own_x + i, y);
      }
    } else sync_block();  // several threads convert a row of floats
  }
  FWP_DEVICE float largest_float() const {
    FWP_ROLLED (int s = 0; s < slabs(); ++s)
      each_eight_floats(s, [&](int row, const float (&x)[8]) {
        float most = 0;
        FWP_UNROLL (int n = 0; n < 8; ++n) most = larger(most, absolute(x[n]));
        FWP_UNROLL (int mask = 1; mask < 8; mask *= 2) most = larger(most, shuffle_xor(most, mask));
        if (column() == 0) of_q[row] = s ? larger(of_q[row], most) : most;
      });
    sync_block();
    return of_q[thread];
  }
  // The largest magnitude of a feature of a monotonic map.
  FWP_DEVICE float largest_feature() const {
    float up = -3e38f, down = up, y[8];
    FWP_ROLLED (int s = 0; s < slabs(); ++s) {
      fetch(s);
      FWP_ROLLED (int i = 0; i < chunk && chunk * s + i < c.d_key; i += 8) {
        unpack(c.x_type, eight(own_phi + i), y);
        FWP_UNROLL (int n = 0; n < 8; ++n) up = larger(up, y[n]), down = larger(down, -y[n]);
      }
      sync_block();
    }
    float most = 0;
    FWP_ROLLED (int end = 0; end < 2; ++end) {
      const float f = function_of(c.map, end ? -down : up);
      most = larger(most, larger(f, -f));
    }
    return most;
  }

  FWP_DEVICE int slabs() const { return DPFP ? (parts + 1) >> 1 : round_up(c.d_key, chunk) / chunk; }
  // The number of columns of a slab, a multiple of 16. `make` writes exactly these.
  FWP_DEVICE int columns(int s) const {
    if (DPFP) return 2 * s + 1 < parts ? 64 : 32;
    const int rest = round_up(c.d_key, 16) - chunk * s;
    return rest < chunk ? rest : chunk;
  }
  FWP_DEVICE void make(int s, int columns) const {
    if constexpr (DPFP) make_dpfp(s, columns);
    else make_function(s);
  }

 protected:
  FWP_DEVICE float power_of(int row) const { return of_q[row] == 0 ? 0.f : undone(of_q[row]); }
  FWP_DEVICE void make_function(int s) const {
    if (c.x_type == Type::float32)
      return each_eight_floats(s, [&](int row, const float (&x)[8]) {
        put_eight(phi + row * tile_ld + column(), packed(Type::float16, x, power_of(row)));
      });
    fetch(s);
    const float power = power_of(thread);
    const int width = c.d_key - chunk * s;
    if (c.map == Map::identity)
      FWP_ROLLED (int i = 0; i < chunk; i += 8)
        put_eight(own_phi + i, multiplied(c.x_type, eight(own_phi + i), i < width ? power : 0.f));
    else
      FWP_ROLLED (int i = 0; i < chunk; i += 2) {
        const Float2 y = two_of(c.x_type, word(own_phi + i));
        const float by = i < width ? power : 0.f;
        word(own_phi + i) = pack_halves(function_of(c.map, y.x) * by, function_of(c.map, y.y) * by);
      }
  }
  FWP_DEVICE void make_dpfp(int s, int columns) const {
    if (c.nu == 2) {  // one group is a part
      const uint16_t* from = own_x + 16 * s;
      FWP_ROLLED (int i = 0; i < columns; i += 32, from += 8) make_group(own_phi + i, from, 1, true);
    } else
      FWP_ROLLED (int u = 0; u < 2; ++u) make_part(c, own_phi + 32 * u, own_x, 2 * s + u);
  }
};

}  // namespace fwp::gpu
