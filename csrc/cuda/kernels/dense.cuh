// The sums of a decoding step over positions whose keys and values are dense: rows of 64 numbers of 2 bytes, as most
// models cache them. A lane reads four numbers at once, and asks for those of several positions before it needs the
// first. Other rows are read one number at a time (decode.cuh).
#pragma once

#include "hypothesis.cuh"

namespace fwp::gpu {

constexpr int dense_width = column_block, most_dense_nu = 4;
constexpr int dense_keys = 8;    // positions that a warp asks for at once, before it needs the first
constexpr int dense_values = 8;  // the same of values, two positions each
struct alignas(8) Four {
  uint32_t x[2];
};
struct alignas(16) FourFloats {
  float x[4];
};

struct DenseRows : Hypothesis {
  DecodeShared s;

  FWP_DEVICE DenseRows(const DecodeCall& call, int index) : Hypothesis(call, index) {
    s.lay(reinterpret_cast<float*>(shared_memory(s.lay(nullptr, c))), c);
  }
  FWP_DEVICE int64_t place(int p) const { return Hypothesis::place(s.rows[p]); }

  FWP_DEVICE bool is_dense() const {
    const bool aligned =
        (reinterpret_cast<uintptr_t>(c.keys) | reinterpret_cast<uintptr_t>(c.written)) % sizeof(Four) == 0;
    const bool known = c.map == Map::dpfp ? c.nu <= most_dense_nu : c.d_dot == dense_width;
    return known && aligned && c.type != Type::float32 && c.d_cached == dense_width && c.d_value == dense_width;
  }
  // What the lane has of a dense row of keys or values: numbers 4 (lane % 16) and on.
  FWP_DEVICE const Four& four(const void* rows, int p) const {
    return static_cast<const Four*>(rows)[int64_t(s.rows[p]) * (c.heads * (dense_width / 4)) + own()];
  }
  FWP_DEVICE int own() const { return h * (dense_width / 4) + lane % 16; }
  FWP_DEVICE void expand(float (&x)[4], const Four& from) const {
    if (c.type == Type::float16)
      FWP_UNROLL (int i = 0; i < 4; ++i) x[i] = from_half(uint16_t(from.x[i / 2] >> 16 * (i % 2)));
    else
      FWP_UNROLL (int i = 0; i < 4; ++i) x[i] = float_of(i % 2 ? from.x[i / 2] & 0xffff0000u : from.x[i / 2] << 16);
  }
  // a and b of all positions, and their sums, of dense keys. A warp has every eighth position; what it asks for of the
  // next ones comes while it multiplies.
  FWP_DEVICE void multiply(int positions, bool correcting, float (&sums)[4]) const {
    constexpr int step = decode_warps * dense_keys;
    Four next[dense_keys];
    const auto ask = [&](Four& to, int p) {
      if (p < positions) to = four(c.keys, p);
    };
    FWP_UNROLL (int i = 0; i < dense_keys; ++i) ask(next[i], decode_warps * i + warp);
    FWP_ROLLED (int begin = warp; begin < positions; begin += step) {
      float found[2 * dense_keys] = {};  // a, then b
      FWP_UNROLL (int i = 0; i < dense_keys; ++i)
        if (begin + decode_warps * i < positions) {
          const Four key = next[i];
          ask(next[i], begin + step + decode_warps * i);
          multiply_one(key, correcting, found[i], found[dense_keys + i]);
        }
      add_halves<dense_keys>(found);
      const int p = begin + decode_warps * (lane / 2 % dense_keys);
      const float x = found[0] + shuffle_xor(found[0], 1);
      if (lane % 2 || p >= positions) continue;
      const float weighed = x * s.weights[p];
      if (lane < 16) s.a[p] = weighed, sums[0] += weighed;
      else s.b[p] = weighed, sums[1] += weighed;
    }
  }
  // Sums of 2 half numbers over pairs of lanes. Each lane passes on those that the other one keeps, and goes on with its
  // own: at the end two lanes have what is left of number lane / 2.
  template <int half> FWP_DEVICE void add_halves(float (&x)[2 * dense_keys]) const {
    const bool upper = lane & 2 * half;
    FWP_UNROLL (int i = 0; i < half; ++i)
      x[i] = (upper ? x[half + i] : x[i]) + shuffle_xor(upper ? x[i] : x[half + i], 2 * half);
    if constexpr (half > 1) add_halves<half / 2>(x);
  }
  // What the lane adds to a and b of a dense key, of which it has four numbers. Under DPFP numbers b of r = relu([x, -x])
  // are those of lane b / 4, and features r_b r_{b-j} take j of them from the lane before.
  FWP_DEVICE void multiply_one(const Four& key, bool correcting, float& a, float& b) const {
    float r[4], before[most_dense_nu + 1];  // before[n]: number b - n of its first b
    expand(r, key);
    const auto add = [&](int from, const float (&feature)[4]) {
      const FourFloats q = *reinterpret_cast<const FourFloats*>(s.phi + from);
      FWP_UNROLL (int i = 0; i < 4; ++i) a += feature[i] * q.x[i];
      if (!correcting) return;
      const FourFloats k = *reinterpret_cast<const FourFloats*>(s.phi + c.d_dot + from);
      FWP_UNROLL (int i = 0; i < 4; ++i) b += feature[i] * k.x[i];
    };
    if (c.map != Map::dpfp) {
      if (lane < 16) add(4 * lane, r);
      return;
    }
    FWP_UNROLL (int i = 0; i < 4; ++i) {
      r[i] = lane < 16 ? r[i] : -r[i];
      r[i] = r[i] < 0 ? 0.f : r[i];
    }
    FWP_UNROLL (int j = 1; j <= most_dense_nu; ++j) {
      if (j > c.nu) break;
      before[j] = shuffle(r[4 - j], (lane + 31) % 32);
      float feature[4];
      FWP_UNROLL (int i = 0; i < 4; ++i) feature[i] = r[i] * (i < j ? before[j - i] : r[i - j]);
      add((j - 1) * 2 * dense_width + 4 * lane, feature);
    }
  }
  // Each warp's part of N and O, of dense values.
  FWP_DEVICE void read(int positions, bool correcting) const {
    float N[4] = {}, O[4] = {};
    FWP_ROLLED (int first = 2 * warp + lane / 16; first - lane / 16 < positions;
                first += 2 * decode_warps * dense_values) {
      Four values[dense_values];
      FWP_UNROLL (int i = 0; i < dense_values; ++i)
        if (const int p = first + 2 * decode_warps * i; p < positions) values[i] = four(c.written, p);
      FWP_UNROLL (int i = 0; i < dense_values; ++i) {
        const int p = first + 2 * decode_warps * i;
        if (p >= positions) continue;
        float u[4];
        expand(u, values[i]);
        FWP_UNROLL (int n = 0; n < 4; ++n) N[n] += s.a[p] * u[n];
        if (!correcting) continue;
        FWP_UNROLL (int n = 0; n < 4; ++n) O[n] += s.b[p] * u[n];
      }
    }
    FWP_UNROLL (int i = 0; i < 4; ++i) {
      N[i] += shuffle_xor(N[i], 16), O[i] += shuffle_xor(O[i], 16);
      if (lane < 16) {
        s.dense[warp * column_block + 4 * lane + i] = N[i];
        s.dense[(decode_warps + warp) * column_block + 4 * lane + i] = O[i];
      }
    }
  }
};

}  // namespace fwp::gpu
