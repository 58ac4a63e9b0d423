// Features of queries and keys, 64 columns (a slab) at a time, in shared memory. Columns of a slab may come in any
// order: sums over features do not depend on it. Rows come with a power of two each.
//
// DPFP: x lies in shared memory, with what stands before it: x_{-j} = -x_{d_key - j}. With r = max(x, 0) of both signs,
// r_b r_{b-j} makes all features. Neighbours b .. b + 7 of both signs and one j make 16 columns, for which j or, where nu
// is odd, b goes on in the next 16.
#pragma once

#include "number.cuh"
#include "tokens.cuh"

namespace fwp::gpu {

FWP_BOTH bool is_dpfp(const Call& c) { return c.map == Map::dpfp; }
FWP_BOTH int before_x(const Call& c) { return round_up(c.nu, 8); }
FWP_BOTH int x_ld(const Call& c) { return before_x(c) + c.d_key; }
FWP_BOTH int groups_of(const Call& c) { return c.d_key / 8; }
// 32 columns of a row, which one thread makes: two groups of inputs, or two j.
FWP_BOTH int parts_of_j(const Call& c) { return c.nu % 2 == 0 ? groups_of(c) : (groups_of(c) + 1) / 2; }
FWP_BOTH int parts_of(const Call& c) { return parts_of_j(c) * (c.nu % 2 == 0 ? c.nu / 2 : c.nu); }
FWP_BOTH int slabs_of(const Call& c) { return is_dpfp(c) ? (parts_of(c) + 1) / 2 : (c.d_key + chunk - 1) / chunk; }

FWP_DEVICE float function_of(Map map, float x) {
  return map == Map::elu    ? Function<Map::elu>::value<OfFloats>(x)
         : map == Map::relu ? Function<Map::relu>::value<OfFloats>(x)
                            : x;
}
FWP_DEVICE float function_back(Map map, float g, float f) {
  return map == Map::elu    ? Function<Map::elu>::back<OfFloats>(g, f)
         : map == Map::relu ? Function<Map::relu>::back<OfFloats>(g, f)
                            : g;
}
FWP_DEVICE void unpack(Type type, const Eight& x, float (&y)[8]) {
  if (type == Type::float16)
    FWP_UNROLL (int n = 0; n < 8; ++n) y[n] = n % 2 ? second_half(x.w[n / 2]) : first_half(x.w[n / 2]);
  else
    FWP_UNROLL (int n = 0; n < 8; ++n) y[n] = float_of(n % 2 ? x.w[n / 2] & 0xffff0000u : x.w[n / 2] << 16);
}
FWP_DEVICE uint32_t pack_two(Type type, float a, float b) {
  return type == Type::float16 ? pack_halves(a, b) : pack_bfloat16s(a, b);
}

// The block of a head, with ROWS queries and ROWS keys, padded with zeros.
template <int ROWS> struct Slabs : Head, Fragments {
  static constexpr int threads = 2 * ROWS, pieces = ROWS * 8 / threads;
  static constexpr int most_power = 1;  // x, or other features, are below 2^1
  uint16_t *x, *phi;  // queries, then keys
  float *of_q, *of_k;  // by what features have to be multiplied

  FWP_DEVICE Slabs(const Call& call, int head) : Head(call, head) {}

  // A thread's pieces are 8 columns of 64, of every `across`th row. Loops over them are short code, since a block runs
  // most of it once; what they need from memory comes by copies that are asked for before.
  static constexpr int across = threads / 8;
  FWP_DEVICE int first_row() const { return thread / 8; }
  FWP_DEVICE int column() const { return thread % 8 * 8; }
  template <class V> FWP_DEVICE const Eight& at(const Rows<V>& rows, int token, int length, int column) const {
    return eight(
        static_cast<const void*>(static_cast<const uint16_t*>(rows.data) + offset(rows, token, length) + column));
  }
  FWP_DEVICE bool is_there(int r, bool key) const { return key ? r < c.sources && !is_pad(r) : r < c.targets; }
  // Starts to copy 64 columns from `first` on of all rows, with 0 beyond the last column and for rows that are not there.
  FWP_DEVICE void start_rows(uint16_t* to, int ld, const Rows<const void>& from, bool key, int first, int width) const {
    if (first + column() >= width && ld != tile_ld) return;
    FWP_ROLLED (int r = first_row(); r < ROWS; r += across) {
      uint16_t* const piece = to + r * ld + column();
      if (is_there(r, key) && first + column() < width)
        start_copy(piece, &at(from, r, key ? c.sources : c.targets, first + column()));
      else eight(piece) = Eight{};
    }
  }
  FWP_DEVICE uint16_t* row_of_x(int r) const { return x + r * x_ld(c) + before_x(c); }

  FWP_DEVICE void start_inputs() const {
    if (!is_dpfp(c)) return;
    FWP_ROLLED (int first = 0; first < c.d_key; first += chunk) {
      start_rows(row_of_x(0) + first, x_ld(c), c.q, false, first, c.d_key);
      start_rows(row_of_x(ROWS) + first, x_ld(c), c.k, true, first, c.d_key);
    }
  }
  // The powers of rows; under DPFP, x times them in the place of x that was copied. A barrier follows.
  FWP_DEVICE void scale_inputs() const {
    const int width = c.d_key;
    const bool dpfp = is_dpfp(c), both = dpfp || c.map == Map::identity;
    FWP_ROLLED (int n = 0; n < 2 * pieces; ++n) {
      const bool key = n >= pieces;
      const int r = first_row() + n % pieces * across;
      const bool there = is_there(r, key);
      uint16_t* const row = row_of_x(r + (key ? ROWS : 0));
      float y[8], up = -3e38f, down = up;
      const auto fetch = [&](int i) {
        if (dpfp) unpack(c.type, eight(row + i), y);
        else unpack(c.type, there ? at(key ? c.k : c.q, r, key ? c.sources : c.targets, i) : Eight{}, y);
      };
      FWP_ROLLED (int i = column(); i < width; i += chunk) {
        fetch(i);
        FWP_UNROLL (int n = 0; n < 8; ++n) up = larger(up, y[n]), down = larger(down, -y[n]);
      }
      float largest = both ? larger(up, down) : function_of(c.map, up);
      FWP_UNROLL (int mask = 1; mask < 8; mask *= 2) largest = larger(largest, shuffle_xor(largest, mask));
      const float power = power_for(largest, most_power), back = undone(power);
      if (column() == 0) (key ? of_k : of_q)[r] = !there ? 0.f : dpfp ? back * back : back;
      if (!dpfp) continue;
      FWP_ROLLED (int i = column(); i < width; i += chunk) {
        if (width > chunk) fetch(i);
        Eight z;
        FWP_UNROLL (int n = 0; n < 4; ++n) z.w[n] = pack_halves(y[2 * n] * power, y[2 * n + 1] * power);
        eight(row + i) = z;
        // The copies of this group among those before x, of which every groups_of(c) change their sign.
        int copy = i - width;
        FWP_ROLLED (bool turned = true; copy >= -before_x(c); copy -= width, turned = !turned) {
          Eight y = z;
          if (turned)
            FWP_UNROLL (int n = 0; n < 4; ++n) y.w[n] ^= 0x80008000u;
          eight(row + copy) = y;
        }
      }
    }
  }

  // Columns of a slab, in whole 16s. All of them are written, and those beyond are not.
  FWP_DEVICE int columns(int s) const {
    if (is_dpfp(c)) return 2 * s + 1 < parts_of(c) ? 64 : 32;
    const int rest = round_up(c.d_key, 16) - chunk * s;
    return rest < chunk ? rest : chunk;
  }
  FWP_DEVICE void make(int s) const {
    if (is_dpfp(c)) return make_dpfp(s);
    FWP_ROLLED (int n = 0; n < 2 * pieces; ++n) {
      const bool key = n >= pieces;
      const int r = first_row() + n % pieces * across, i = chunk * s + column();
      const bool there = i < c.d_key && is_there(r, key);
      const float power = there ? undone((key ? of_k : of_q)[r]) : 0.f;
      float y[8];
      unpack(c.type, there ? at(key ? c.k : c.q, r, key ? c.sources : c.targets, i) : Eight{}, y);
      Eight z;
      FWP_UNROLL (int n = 0; n < 4; ++n)
        z.w[n] = pack_halves(function_of(c.map, y[2 * n]) * power, function_of(c.map, y[2 * n + 1]) * power);
      eight(phi + (r + (key ? ROWS : 0)) * tile_ld + column()) = z;
    }
  }

 protected:
  // Whether a part is of two j, and its first group and j.
  struct Part {
    bool pair, odd;
    int group, j;
  };
  FWP_DEVICE Part part(int i) const {
    const int count = parts_of_j(c), turn = c.nu <= 2 ? 0 : i / count;
    const bool pair = c.nu % 2 == 0;
    const int j = pair ? 2 * turn + 1 : turn + 1;
    return {pair, j % 2 == 1, (pair ? 1 : 2) * (i - turn * count), j};
  }
  // r of 8 neighbours, and of those that stand j before: 16 columns of one sign, or those of j and j + 1.
  template <bool BELOW> static FWP_DEVICE uint32_t clamp(uint32_t x) {
    return BELOW ? negative_halves(x) : positive_halves(x);
  }
  template <bool BELOW>
  static FWP_DEVICE void make_sign(uint16_t* to, const Eight& here, const uint32_t (&before)[5], bool pair, bool odd) {
    uint32_t r[4], w[5];
    FWP_UNROLL (int n = 0; n < 4; ++n) r[n] = clamp<BELOW>(here.w[n]);
    FWP_UNROLL (int n = 0; n < 5; ++n) w[n] = clamp<BELOW>(before[n]);
    Eight f;
    FWP_UNROLL (int n = 0; n < 4; ++n) f.w[n] = multiply_halves(r[n], odd ? straddle(w[n], w[n + 1]) : w[n]);
    eight(to) = f;
    if (!pair) return;
    FWP_UNROLL (int n = 0; n < 4; ++n) f.w[n] = multiply_halves(r[n], w[n]);
    eight(to + 16) = f;
  }
  FWP_DEVICE void make_dpfp(int s) const {
    const int half = thread % 2, i = 2 * s + half, ld = x_ld(c);
    if (i >= parts_of(c)) return;
    const Part p = part(i);
    FWP_ROLLED (int r = thread / 2; r < 2 * ROWS; r += ROWS)
      FWP_ROLLED (int u = 0; u < (p.pair ? 1 : 2); ++u) {
        uint16_t* const to = phi + r * tile_ld + 32 * half + 16 * u;
        if (p.group + u < groups_of(c)) make_group(to, x + r * ld + before_x(c) + 8 * (p.group + u), p);
        else eight(to) = eight(to + 8) = Eight{};
      }
  }
  static FWP_DEVICE void make_group(uint16_t* to, const uint16_t* from, const Part& p) {
    const Eight here = eight(static_cast<const void*>(from));
    const uint16_t* const base = from - (p.j + 1) / 2 * 2;
    uint32_t before[5];
    before[0] = *reinterpret_cast<const uint32_t*>(base);
    if (p.j <= 2)
      FWP_UNROLL (int n = 1; n < 5; ++n) before[n] = here.w[n - 1];
    else
      FWP_UNROLL (int n = 1; n < 5; ++n) before[n] = reinterpret_cast<const uint32_t*>(base)[n];
    make_sign<false>(to, here, before, p.pair, p.odd);
    make_sign<true>(to + 8, here, before, p.pair, p.odd);
  }
};

}  // namespace fwp::gpu
