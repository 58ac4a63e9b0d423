// Reads the cache in a decoding step if its keys and values are dense: rows of 64 numbers of 2 bytes, as in most
// models. All copies start before the token's features are computed. Each warp has every fourth tile of 16 positions.
// One product gives a and b of a tile: the features of its keys, as operands (number.cuh), times those of the query and
// of the new key. Rows of other sizes are read one number at a time (decode.cuh).
#pragma once

#include "hypothesis.cuh"
#include "maps.cuh"

namespace fwp::gpu {

struct alignas(8) Four {
  uint32_t x[2];
};
struct alignas(16) FourFloats {
  float x[4];
};

struct DenseRows : Hypothesis {
  static constexpr int tile = 16;
  static constexpr int key_power = 7, token_power = 14;  // keys, features of the token: below 2^7, 2^14
  DecodeShared s;

  FWP_DEVICE DenseRows(const DecodeCall& call, int index) : Hypothesis(call, index) {
    s.lay(reinterpret_cast<float*>(shared_memory(s.lay(nullptr, c))), c);
  }
  FWP_DEVICE int64_t place(int p) const { return Hypothesis::place(s.rows[p]); }

  // Calls f(first position) for the warp's tiles. The first tiles go to the warps that compute no features.
  template <class F> FWP_DEVICE void each_tile(int positions, F f) const {
    FWP_ROLLED (int first = tile * (warp ^ 2); first < positions; first += tile * decode_warps) f(first);
  }
  FWP_DEVICE uint16_t* key(int p) const { return s.keys + p * dense_ld + dense_before; }
  // Starts to copy keys and values; positions beyond the last are 0.
  FWP_DEVICE void start_history(int positions) const {
    const int piece = lane % 8 * 8, before = h * dense_width + piece, step = c.heads * dense_width;
    const uint16_t* const keys = static_cast<const uint16_t*>(c.keys) + before;
    const uint16_t* const written = static_cast<const uint16_t*>(c.written) + before;
    each_tile(positions, [&](int first) {
      uint16_t *to_key = key(first + lane / 8) + piece, *to_value = s.values + (first + lane / 8) * dense_width + piece;
      FWP_UNROLL (int i = 0; i < tile; i += 4, to_key += 4 * dense_ld, to_value += 4 * dense_width) {
        const int p = first + i + lane / 8;
        if (p >= positions) {
          put_eight(to_key, {}), put_eight(to_value, {});
          continue;
        }
        const int64_t from = int64_t(s.rows[p]) * step;
        start_copy(to_key, keys + from), start_copy(to_value, written + from);
      }
    });
  }
  // Converts the features of the query or the key to an operand; run by the warp that has computed them.
  FWP_DEVICE void make_operand(int which) const {
    const float* const phi = s.phi + which * c.d_dot;
    const float most = largest(c.d_dot, [&](int i) { return absolute(phi[i]); }), power = power_for(most, token_power);
    uint32_t* const to = reinterpret_cast<uint32_t*>(s.operand + which * c.d_dot);
    each(c.d_dot / 2, [&](int i) { to[i] = pack_halves(phi[2 * i] * power, phi[2 * i + 1] * power); });
    if (lane == 0) s.powers[which] = undone(power);
  }
  // Scales the warp's keys, which have arrived, to halves, and stores the numbers before x_0 (dpfp.cuh). Puts the
  // factor that undoes the scaling of products in s.a. Two lanes share a row.
  template <Type TYPE> FWP_DEVICE void scale_keys(int positions) const {
    each_tile(positions, [&](int first) {
      const int p = first + lane / 2;
      uint16_t* const x = key(p) + lane % 2 * 32;
      Eight y[4];
      uint32_t most = 0;
      FWP_UNROLL (int i = 0; i < 4; ++i) most = larger_magnitudes(most, y[i] = eight(x + 8 * i));
      const float some = magnitude(TYPE, most), power = power_for(larger(some, shuffle_xor(some, 1)), key_power);
      FWP_UNROLL (int i = 0; i < 4; ++i) put_eight(x + 8 * i, y[i] = scaled(TYPE, y[i], power));
      if (lane % 2 == 0) {
        const float back = undone(power);
        s.a[p] = c.map == Map::dpfp ? back * back : back;
        return;
      }
      FWP_UNROLL (int n = 0; n < 4; ++n) y[3].w[n] ^= 0x80008000u;
      put_eight(key(p) - dense_before, y[3]);
    });
  }
  // Computes a and b of the warp's positions, and their sums.
  FWP_DEVICE void multiply(int positions, bool correcting, float (&sums)[3]) const {
    each_tile(positions, [&](int first) {
      uint32_t X[4][4];
      float found[4] = {};
      FWP_UNROLL (int k = 0; k < 4; ++k) load_matrices(X[k], key(first + lane % 16) + 16 * k + (lane >> 1 & 8));
      // Only the first two columns are used.
      const uint16_t* const token = s.operand + (lane & int(correcting)) * c.d_dot;
      if (c.map == Map::dpfp) add_dpfp(found, X, first, token);
      else
        FWP_UNROLL (int k = 0; k < 4; k += 2) {
          uint32_t B[4];
          load_matrices(B, token + 16 * k + (lane & 24));
          mma_half(found, X[k], B[0], B[1]), mma_half(found, X[k + 1], B[2], B[3]);
        }
      if (lane % 4 == 0)
        FWP_UNROLL (int r = 0; r < 2; ++r) {
          const int p = first + lane / 4 + 8 * r;
          const float by = p < positions ? s.a[p] * s.weights[p] : 0.f;
          sums[0] += s.a[p] = found[2 * r] * by * s.powers[0];
          if (correcting) sums[1] += s.b[p] = found[2 * r + 1] * by * s.powers[1];
        }
    });
    sync_warp();
  }
  // Adds the products with DPFP features (dpfp.cuh), for two j at a time.
  FWP_DEVICE void add_dpfp(float (&sum)[4], const uint32_t (&X)[4][4], int first, const uint16_t* token) const {
    const uint16_t* before = key(first + lane / 4) + 2 * (lane % 4) - 2;
    token += (lane & 8) + (lane >> 4) * (c.nu > 1 ? 2 * dense_width : 0);
    uint32_t near[4][4];
    FWP_UNROLL (int i = 0; i < 16; ++i) near[i / 4][i % 4] = X[i / 4][i % 4];
    FWP_ROLLED (int j = 0; j < c.nu; j += 2, before -= 2) {
      if (c.nu - j == 1 && lane >= 16) token -= j ? 2 * dense_width : 0;  // there is no second j
      FWP_UNROLL (int k = 0; k < 4; ++k) {
        uint32_t above[4], below[4], far[4];  // the token's features of both j; what stands before
        load_matrices(above, token + 16 * k), load_matrices(below, token + dense_width + 16 * k);
        FWP_UNROLL (int i = 0; i < 4; ++i)
          far[i] = *reinterpret_cast<const uint32_t*>(before + i % 2 * (8 * dense_ld) + 16 * k + 8 * (i / 2));
        FWP_UNROLL (int n = 0; n < 4; n += 2) {
          if (n == 2 && j + 1 == c.nu) continue;
          uint32_t A[4], B[4];
          FWP_UNROLL (int i = 0; i < 4; ++i) {
            const uint32_t f = positive_product(X[k][i], n == 0 ? straddle(far[i], near[k][i]) : far[i]);
            B[i] = f & signs(X[k][i]);
            A[i] = f ^ B[i];
          }
          mma_half(sum, A, above[n], above[n + 1]), mma_half(sum, B, below[n], below[n + 1]);
        }
        FWP_UNROLL (int i = 0; i < 4; ++i) near[k][i] = far[i];
      }
      token += 4 * dense_width;
    }
  }
  // Computes this warp's part of N and O.
  template <Type TYPE, bool CORRECTS> FWP_DEVICE void read(int positions) const {
    float N[4] = {}, O[4] = {};
    each_tile(positions, [&](int first) {
      const uint16_t* const values = s.values + (first + lane / 16) * dense_width + lane % 16 * 4;
      const float *const a = s.a + first + lane / 16, *const b = s.b + first + lane / 16;
      FWP_UNROLL (int i = 0; i < tile; i += 2) {
        float u[4];
        expand<TYPE>(u, *reinterpret_cast<const Four*>(values + i * dense_width));
        FWP_UNROLL (int n = 0; n < 4; ++n) N[n] += a[i] * u[n];
        if constexpr (CORRECTS)
          FWP_UNROLL (int n = 0; n < 4; ++n) O[n] += b[i] * u[n];
      }
    });
    FWP_UNROLL (int i = 0; i < 4; ++i) {
      N[i] += shuffle_xor(N[i], 16);
      if constexpr (CORRECTS) O[i] += shuffle_xor(O[i], 16);
    }
    if (lane >= 16) return;
    float* const to = s.dense + warp * column_block + 4 * lane;
    *reinterpret_cast<FourFloats*>(to) = {N[0], N[1], N[2], N[3]};
    *reinterpret_cast<FourFloats*>(to + decode_warps * column_block) = {O[0], O[1], O[2], O[3]};
  }
  template <Type TYPE> static FWP_DEVICE void expand(float (&x)[4], const Four& from) {
    FWP_UNROLL (int i = 0; i < 4; ++i) {
      const uint32_t two = from.x[i / 2];
      x[i] = TYPE == Type::float16 ? i % 2 ? second_half(two) : first_half(two)
                                   : float_of(i % 2 ? two & 0xffff0000u : two << 16);
    }
  }
};

}  // namespace fwp::gpu
