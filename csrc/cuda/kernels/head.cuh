// What one block holds of a (batch row, head): features of a piece of at most LT queries and keys in shared memory, and
// the products that forward and backward are made of. Equations: docs/kernels.md.
//
// Warp w owns the queries and the keys row .. row + 15, row = 16 w: a *strip* is the 16 rows of a tokens x tokens matrix
// that belong to them, in accumulators, strip[n][..] covering the columns 8 n .. 8 n + 7. An accumulator strip is an A
// operand as it stands, so no tokens x tokens matrix ever goes to memory.
//
// Features lie in shared memory as *base* rows, feature-major: base[feature][token], so that one layout gives operands
// along features (transposed loads) and along tokens (plain loads), and a rolled row is just another row. For DPFP the
// base is r = relu([x, -x]) and phi_{j,i} = r_i r_{i-j} is multiplied when the operand is loaded; for the other maps the
// base is phi itself, in slabs of at most 128 rows that are staged one after the other. Base rows are scaled by a power
// of two per token (`unit`: true base = unit x base), so that fp16 holds them whatever the inputs' size; `scale` is what
// turns the stored phi into the feature that the rule sees, 0 for padding and behind the end.
#pragma once

#include <initializer_list>
#include <type_traits>

#include "limits.h"
#include "numbers.cuh"
#include "operands.cuh"
#include "piece.cuh"
#include "state.cuh"

namespace fwp::gpu {

constexpr int value_block = 64;  // columns of values worked on at a time; slice_columns by the forward's general instances

// Base rows in shared memory: at most slab_rows, but for DPFP, which needs all 2 d_key.
FWP_BOTH int resident_rows(const Call& c) {
  const int m = c.d_dot / 2;
  if (c.map == Map::dpfp) return round_up(2 * c.d_key, 16);
  if (c.map == Map::favor) return 2 * (m < slab_rows / 2 ? round_up(m, 16) : slab_rows / 2);
  return c.d_dot < slab_rows ? round_up(c.d_dot, 16) : slab_rows;
}
FWP_BOTH int value_blocks(const Call& c) { return (c.d_value + value_block - 1) / value_block; }

// Rows of values in shared memory are this many floats apart: 4 modulo 32, so that the operands' loads meet no bank twice.
template <int COLUMNS> FWP_BOTH int value_stride(const Call& c, bool backward) {
  return (backward ? value_blocks(c) * value_block : COLUMNS) + 4;
}

template <class P, int LT, int COLUMNS = value_block> struct Shared {
  static constexpr int ld = LT + P::padding;  // of base rows
  typename P::Element *queries, *keys;        // [resident_rows][ld]
  float *D, *Z, *G;                           // [LT][value_stride]; Z, G: backward only
  float* square;                              // [LT / 16][16][17]: diagonal blocks
  float *unit_q, *unit_k, *scale_q, *scale_k;  // [LT] each, as all that follow
  float *beta, *read_rate, *written;          // see forward.cuh
  float *gradient_den, *gradient_seen, *shift_q, *shift_k;  // backward only
  int* last_key;                              // [LT / 16]

  // Cuts up the memory at `base`; bytes used.
  FWP_BOTH int lay(char* base, const Call& c, bool backward) {
    int used = 0;
    const auto take = [&](auto*& pointer, int count) {
      pointer = reinterpret_cast<std::remove_reference_t<decltype(pointer)>>(base + used);
      used = round_up(used + count * int(sizeof *pointer), 16);
    };
    // What has the same size in every call comes first: its addresses are constants and take no registers.
    take(square, LT / 16 * 16 * 17);
    for (float** each : {&unit_q, &unit_k, &scale_q, &scale_k, &beta, &read_rate, &written}) take(*each, LT);
    take(last_key, LT / 16);
    if (backward)
      for (float** each : {&gradient_den, &gradient_seen, &shift_q, &shift_k}) take(*each, LT);
    take(queries, resident_rows(c) * ld);
    take(keys, resident_rows(c) * ld);
    for (float** each : {&D, &Z, &G})
      if (backward || each == &D) take(*each, LT * value_stride<COLUMNS>(c, backward));
    return used;
  }
};

// GENERAL: also FAVOR+, features in more than one slab, and states. Without it the code, and the registers, are fewer.
template <class P, int LT, bool GENERAL, int COLUMNS = value_block> struct Head {
  static constexpr int tiles = LT / 16, strip_tiles = LT / 8, value_tiles = COLUMNS / 8;
  static constexpr int ld = Shared<P, LT>::ld;
  using Element = typename P::Element;
  using Pair = typename P::Pair;
  using Strip = float[strip_tiles][4];
  using Values = float[value_tiles][4];
  using Projected = float[slab_rows / 16][4];

  const Call& c;
  const Piece here;
  const bool backward;
  Shared<P, LT, COLUMNS> s;
  const int lane, g, t, row, b, h;
  int stride;        // of D, Z, G
  int base_rows;     // resident
  int modulus;       // base rows come round after so many: DPFP: 2 d_key, the other maps: never
  int slabs, staged = -1;
  int sources;       // keys here up to the last that is not padding
  int source_tiles, target_tiles;

  FWP_DEVICE Head(const Call& call, const Piece& piece, bool backward) : Head(call, piece, backward, Again{}) {
    find_last_key();
    target_tiles = (here.queries + 15) / 16;
    source_tiles = (sources + 15) / 16;
    if (!GENERAL) stage(0, true);
    sync_block();
  }
  // The same block and piece again: for functions that are called. Handing them a pointer to this would keep it in memory.
  struct Again {};
  FWP_DEVICE Head(const Call& call, const Piece& piece, bool backward, Again)
      : c(call), here(piece), backward(backward), lane(thread_index() % 32), g(lane / 4), t(lane % 4),
        row(thread_index() / 32 * 16), b(piece.head / call.heads), h(piece.head % call.heads) {
    s.lay(shared_memory(s.lay(nullptr, c, backward)), c, backward);
    stride = value_stride<COLUMNS>(c, backward);
    base_rows = resident_rows(c);
    modulus = c.map == Map::dpfp ? 2 * c.d_key : slab_rows;
    const int step = c.map == Map::favor ? base_rows / 2 : base_rows, all = c.map == Map::favor ? c.d_dot / 2 : c.d_dot;
    slabs = c.map == Map::dpfp ? 1 : (all + step - 1) / step;
    if (!GENERAL) slabs = 1;
  }

  // ---- tokens ----

  FWP_DEVICE bool query_there(int i) const { return i < here.queries; }
  FWP_DEVICE bool key_there(int i) const {
    return i < here.keys && !(c.padding.data && c.padding.data[b * c.padding.batch + (here.first + i) * c.padding.time]);
  }
  template <class V> FWP_DEVICE int64_t offset(const Rows<V>& rows, int i) const {
    return b * rows.batch + (here.first + i) * rows.time + h * rows.head;
  }

  // sources, beta (1 for the sum rule, 0 for padding and behind the end)
  FWP_DEVICE void find_last_key() {
    const int i = thread_index();
    const bool there = i < LT && key_there(i);
    float last = there ? float(i + 1) : 0.f;
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
      const float other = shuffle_xor(last, d);
      last = other > last ? other : last;
    }
    if (i < LT && lane == 0) s.last_key[i / 32] = int(last);
    if (i < LT)
      s.beta[i] = !there ? 0.f : c.beta.data ? c.beta.data[offset(c.beta, i)] : 1.f;
    sync_block();
    sources = 0;
#pragma unroll 1
    for (int w = 0; w < (LT + 31) / 32; ++w) sources = s.last_key[w] > sources ? s.last_key[w] : sources;
  }

  // ---- features ----

  // Eight inputs of a token from `first` on, 0 where there is none.
  FWP_DEVICE void load_inputs(const Rows<const void>& rows, int64_t at, bool there, int first, float (&x)[8]) const {
    if (there && rows.aligned) {
      P::load_eight(c.type, rows.data, at + first, x);
      return;
    }
#pragma unroll
    for (int i = 0; i < 8; ++i)
      x[i] = there && first + i < c.d_key ? P::load(c.type, rows.data, at + first + i) : 0.f;
  }

  // Base rows of slab `slab` of both sides; a thread a token and side. `fresh`: with their units.
  FWP_DEVICE void stage(int slab, bool fresh) const {
    if (GENERAL && c.map == Map::favor) {
      stage_favor(slab, s.queries, s.unit_q, false, fresh);
      stage_favor(slab, s.keys, s.unit_k, true, fresh);
      return;
    }
    const bool is_key = thread_index() >= LT;
    const int i = thread_index() % LT;
    const bool there = is_key ? key_there(i) : query_there(i);
    const Rows<const void>& rows = is_key ? c.k : c.q;
    const int64_t at = offset(rows, i);
    float* unit = (is_key ? s.unit_k : s.unit_q) + i;
    Element* to = (is_key ? s.keys : s.queries) + i;
    float x[8];
    if (fresh) {
      float largest = 0, top = -INFINITY;
#pragma unroll 1
      for (int d = 0; P::scaled && d < c.d_key; d += 8) {
        load_inputs(rows, at, there, d, x);
#pragma unroll
        for (int e = 0; e < 8; ++e) {
          largest = absolute(x[e]) > largest ? absolute(x[e]) : largest;
          if (d + e < c.d_key) top = x[e] > top ? x[e] : top;
        }
      }
      *unit = P::scaled ? power_below(c.map == Map::elu ? elu(top) : largest) : 1.f;
    }
    const float by = 1 / *unit;
    const int first = c.map == Map::dpfp ? 0 : slab * base_rows;
    const int count = c.map == Map::dpfp ? c.d_key : c.d_key - first < base_rows ? c.d_key - first : base_rows;
#pragma unroll 1
    for (int d = 0; d < count; d += 8) {
      load_inputs(rows, at, there, first + d, x);
#pragma unroll
      for (int e = 0; e < 8; ++e)
        if (d + e < count) {
          Element* column = to + (d + e) * ld;
          if (c.map == Map::dpfp) {
            column[0] = P::element(x[e] > 0 ? x[e] * by : x[e] < 0 ? 0.f : x[e]);
            column[c.d_key * ld] = P::element(x[e] < 0 ? -x[e] * by : x[e] > 0 ? 0.f : x[e]);
          } else {
            column[0] = P::element(!there ? 0.f : (c.map == Map::elu ? elu(x[e]) : x[e]) * by);
          }
        }
    }
#pragma unroll 1
    for (int n = c.map == Map::dpfp ? modulus : count; n < base_rows; ++n) to[n * ld] = P::element(0);
  }

  // R x' of 64 (base_rows / 2) rows of R for the 16 tokens from `row` on, and |x'|^2 / 2 of the tokens g and g + 8.
  FWP_DEVICE void project(const Rows<const void>& rows, bool keys, int slab, Projected& p, float (&norm)[2]) const {
    const int first = slab * (base_rows / 2), m = c.d_dot / 2;
#pragma unroll
    for (int n = 0; n < slab_rows / 16; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) p[n][i] = 0;
    norm[0] = norm[1] = 0;
#pragma unroll 1
    for (int d = 0; d < c.d_key; d += 16) {
      Float2 a[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        a[i] = input_pair(rows, keys, row + g + 8 * (i & 1), d + 2 * t + 8 * (i >> 1));
        norm[i & 1] += a[i].x * a[i].x + a[i].y * a[i].y;
      }
#pragma unroll
      for (int n = 0; n < slab_rows / 16; ++n) {
        const int i = first + 8 * n + g;
        Float2 w[2];
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int at = d + 2 * t + 8 * e;
          w[e].x = i < m && at < c.d_key ? c.projection[i * c.d_key + at] : 0.f;
          w[e].y = i < m && at + 1 < c.d_key ? c.projection[i * c.d_key + at + 1] : 0.f;
        }
        mma_split(p[n], a, w[0], w[1]);
      }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) norm[r] = 0.5f * quad_sum(norm[r]);
  }
  // x' of a token, two of its inputs
  FWP_DEVICE Float2 input_pair(const Rows<const void>& rows, bool keys, int token, int d) const {
    const bool there = keys ? key_there(token) : query_there(token);
    const int64_t at = offset(rows, token) + d;
    return {there && d < c.d_key ? P::load(c.type, rows.data, at) * c.input_scale : 0.f,
            there && d + 1 < c.d_key ? P::load(c.type, rows.data, at + 1) * c.input_scale : 0.f};
  }
  FWP_DEVICE void stage_favor(int slab, Element* to, float* unit, bool keys, bool fresh) const {
    const Rows<const void>& rows = keys ? c.k : c.q;
    const int half = base_rows / 2, m = c.d_dot / 2;
    Projected p;
    float norm[2];
    // `unit` is the largest exponent of each token here, see scale_of.
    if (fresh) {
      float top[2] = {-INFINITY, -INFINITY};
#pragma unroll 1
      for (int n_slab = 0; n_slab < slabs; ++n_slab) {
        project(rows, keys, n_slab, p, norm);
#pragma unroll
        for (int n = 0; n < slab_rows / 16; ++n)
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const float x = absolute(p[n][i]);  // 0 behind the last row of R: no matter
            top[i >> 1] = x > top[i >> 1] ? x : top[i >> 1];
          }
      }
#pragma unroll
      for (int r = 0; r < 2; ++r) {
#pragma unroll
        for (int d = 1; d < 4; d *= 2) {
          const float other = shuffle_xor(top[r], d);
          top[r] = other > top[r] ? other : top[r];
        }
        top[r] -= norm[r];
        if (t == 0) unit[row + g + 8 * r] = top[r] < largest_favor_exponent ? top[r] : largest_favor_exponent;
      }
      sync_warp();
    }
    project(rows, keys, slab, p, norm);
#pragma unroll
    for (int n = 0; n < slab_rows / 16; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int feature = 8 * n + 2 * t + (i & 1), token = row + g + 8 * (i >> 1);
        if (feature >= half) continue;
        const bool there = slab * half + feature < m;
        to[feature * ld + token] = P::element(there ? favor(p[n][i] - norm[i >> 1], unit[token]) : 0.f);
        to[(half + feature) * ld + token] = P::element(there ? favor(-p[n][i] - norm[i >> 1], unit[token]) : 0.f);
      }
  }
  static FWP_DEVICE float favor(float exponent, float top) {
    return exponential((exponent < largest_favor_exponent ? exponent : largest_favor_exponent) - top);
  }

  static FWP_CALLED void restage(const Call& c, int head, int first, int queries, int keys, bool backward, int slab, bool fresh) {
    sync_block();
    Head(c, {head, first, queries, keys, {}, {}, {}, {}}, backward, Again{}).stage(slab, fresh);
    sync_block();
  }
  // Calls f(slab) with each slab in shared memory, at all threads.
  template <class F> FWP_DEVICE void for_slabs(F f) {
    if constexpr (GENERAL) {
#pragma unroll 1
      for (int slab = 0; slab < slabs; ++slab) {
        if (staged != slab) {
          restage(c, here.head, here.first, here.queries, here.keys, backward, slab, staged < 0);
          staged = slab;
        }
        f(slab);
      }
    } else {
      f(0);
    }
  }
  // Calls f(j, first) for every 16 rows of features of the slab; j: DPFP's offset, 0 for the other maps.
  template <class F> FWP_DEVICE void for_features(F f) const {
    const int first = c.map == Map::dpfp ? 1 : 0, last = c.map == Map::dpfp ? c.nu : 0;
#pragma unroll 1
    for (int j = first; j <= last; ++j)
#pragma unroll 1
      for (int i = 0; i < base_rows; i += 16) f(j, i);
  }
  // 16 rows of features of the slab, by number: DPFP's offset and the first base row.
  struct Tile16 {
    int j, i;
  };
  FWP_DEVICE int feature_tiles() const { return (c.map == Map::dpfp ? c.nu : 1) * (base_rows / 16); }
  FWP_DEVICE Tile16 feature_tile(int number) const {
    const int each = base_rows / 16;
    return {c.map == Map::dpfp ? 1 + number / each : 0, number % each * 16};
  }
  // Number of the feature in the state, or -1: base row i of the slab, in DPFP's block j.
  FWP_DEVICE int feature_number(int slab, int j, int i) const {
    if (c.map == Map::dpfp) return i < modulus ? (j - 1) * modulus + i : -1;
    if (c.map == Map::identity || c.map == Map::elu) return slab * base_rows + i < c.d_dot ? slab * base_rows + i : -1;
    const int half = base_rows / 2, m = c.d_dot / 2, n = slab * half + i % half;
    return n >= m ? -1 : i < half ? n : m + n;
  }
  FWP_DEVICE int wrap(int i) const { return i < 0 ? i + modulus : i >= modulus ? i - modulus : i; }

  // Features first .. first + 15 of 16 tokens from `token` on, pairs along features; as A operand: rows are tokens, as
  // B operands of two tiles of 8 tokens: (p[0], p[2]) and (p[1], p[3]).
  FWP_DEVICE void along_features(Pair (&p)[4], const Element* side, int first, int token, int j) const {
    Pair one[1][4];
    along_features(one, first, j, [&](int) { return side + token; });
#pragma unroll
    for (int i = 0; i < 4; ++i) p[i] = one[0][i];
  }
  // The same for N times 16 tokens, from tokens(n) on: their loads do not wait for each other.
  template <int N, class F> FWP_DEVICE void along_features(Pair (&p)[N][4], int first, int j, F tokens) const {
#pragma unroll
    for (int n = 0; n < N; ++n) P::by_columns(p[n], lane, 0, [&](int i) { return tokens(n) + (first + i) * ld; });
    if (!j) return;
    Pair rolled[N][4];
#pragma unroll
    for (int n = 0; n < N; ++n) P::by_columns(rolled[n], lane, 0, [&](int i) { return tokens(n) + wrap(first + i - j) * ld; });
#pragma unroll
    for (int n = 0; n < N; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) p[n][i] = P::multiply(p[n][i], rolled[n][i]);
  }
  // r_i r_{i+shift} for DPFP, phi_i for the other maps; pairs along tokens: as A operand rows are features, as B
  // operands of two tiles of 8 features: (p[0], p[2]) and (p[1], p[3]).
  FWP_DEVICE void along_tokens(Pair (&p)[4], const Element* side, int first, int token, int shift) const {
    Pair one[1][4];
    along_tokens(one, side, token, [&](int) { return first; }, [&](int) { return shift; });
#pragma unroll
    for (int i = 0; i < 4; ++i) p[i] = one[0][i];
  }
  // The same for N times 16 features, from first(n) on: their loads do not wait for each other.
  template <int N, class F, class G>
  FWP_DEVICE void along_tokens(Pair (&p)[N][4], const Element* side, int token, F first, G shift) const {
#pragma unroll
    for (int n = 0; n < N; ++n) P::by_rows(p[n], lane, token, [&](int i) { return side + wrap(first(n) + i) * ld; });
    if (c.map != Map::dpfp) return;
    Pair rolled[N][4];
#pragma unroll
    for (int n = 0; n < N; ++n)
      P::by_rows(rolled[n], lane, token, [&](int i) { return side + wrap(first(n) + i + shift(n)) * ld; });
#pragma unroll
    for (int n = 0; n < N; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) p[n][i] = P::multiply(p[n][i], rolled[n][i]);
  }

  // ---- small pieces ----

  FWP_DEVICE float quad_sum(float x) const {
    x += shuffle_xor(x, 1);
    return x + shuffle_xor(x, 2);
  }
  template <int N> static FWP_DEVICE void clear(float (&x)[N][4]) {
#pragma unroll
    for (int n = 0; n < N; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) x[n][i] = 0;
  }
  // Calls f(n, i, column) for every number of a strip.
  template <class F> FWP_DEVICE void for_strip(F f) const {
#pragma unroll
    for (int n = 0; n < strip_tiles; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) f(n, i, 8 * n + 2 * t + (i & 1));
  }
  FWP_DEVICE int row_of(int i) const { return row + g + 8 * (i >> 1); }  // of element i of any accumulator

  // What numerators are multiplied by, given the denominator; 0 where that is 0.
  FWP_DEVICE float rate_of(float total) const { return !c.normalize_output ? 1.f : total == 0 ? 0.f : 1 / total; }

  // What turns stored features of a token into the rule's; `sum` of its stored features.
  FWP_DEVICE float scale_of(float unit, float sum, bool there) const {
    const float factor = c.map == Map::dpfp    ? unit * unit
                         : c.map == Map::favor ? exponential(unit) / sqrtf(float(c.d_dot))
                                               : unit;
    if (!there) return 0;
    if (!c.normalize_features) return factor;
    // factor / (factor sum + eps), also where the factor itself is too small for a float
    const float total = sum + (c.eps == 0 ? 0.f : c.eps / factor);
    return total == 0 ? 0.f : 1 / total;
  }

  // strip += (features of own tokens in `own`) . (features of tokens in `other`), tiles first .. last - 1 of 16 tokens
  FWP_DEVICE void add_gram(Strip& strip, const Element* own, const Element* other, int first, int last) {
    for_slabs([&](int) {
      for_features([&](int j, int i) {
        Pair x[4];
        along_features(x, own, i, row, j);
#pragma unroll
        for (int m = 0; m < tiles; ++m)
          if (m >= first && m < last) {
            Pair y[4];
            along_features(y, other, i, 16 * m, j);
            P::mma(strip[2 * m], x, y[0], y[2]);
            P::mma(strip[2 * m + 1], x, y[1], y[3]);
          }
      });
    });
  }

  // Sums of features of own tokens from accumulators of phi times ones.
  FWP_DEVICE void finish_scales(const float (&sum_q)[4], const float (&sum_k)[4]) {
    if (t == 0)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int i = row + g + 8 * r;
        s.scale_q[i] = scale_of(s.unit_q[i], sum_q[2 * r], query_there(i));
        s.scale_k[i] = scale_of(s.unit_k[i], sum_k[2 * r], key_there(i));
      }
  }

  // Own rows of `rows` (values, or their gradient), columns first .. first + 63; 0 where there is nothing.
  FWP_DEVICE void load_values(const Rows<const void>& rows, bool keys, int first, Values& x) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int i = row + g + 8 * r, end = (keys ? key_there(i) : query_there(i)) ? c.d_value : 0;
      const int64_t at = offset(rows, i);
      const auto fill = [&](auto load) {
#pragma unroll
        for (int n = 0; n < value_tiles; ++n) {
          const int column = first + 8 * n + 2 * t;
          const Float2 pair = column < end ? load(at + column, column + 1 < end) : Float2{0, 0};
          x[n][2 * r] = pair.x;
          x[n][2 * r + 1] = pair.y;
        }
      };
      if (rows.aligned) fill([&](int64_t at, bool) { return P::load_pair(c.type, rows.data, at); });
      else fill([&](int64_t at, bool both) {
        return Float2{P::load(c.type, rows.data, at), both ? P::load(c.type, rows.data, at + 1) : 0.f};
      });
    }
  }
  FWP_DEVICE void store_values(const Rows<void>& rows, int tokens, int first, const Values& x) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int i = row + g + 8 * r;
      if (i >= tokens) continue;
      const int64_t at = offset(rows, i);
      const auto each = [&](auto store) {
#pragma unroll
        for (int n = 0; n < value_tiles; ++n) {
          const int column = first + 8 * n + 2 * t;
          if (column < c.d_value) store(at + column, column + 1 < c.d_value, Float2{x[n][2 * r], x[n][2 * r + 1]});
        }
      };
      if (rows.aligned) each([&](int64_t at, bool, Float2 pair) { P::store_pair(c.type, rows.data, at, pair); });
      else each([&](int64_t at, bool both, Float2 pair) {
        P::store(c.type, rows.data, at, pair.x);
        if (both) P::store(c.type, rows.data, at + 1, pair.y);
      });
    }
  }
  // Own rows to shared memory, `to` [LT][stride], from column `first` on.
  FWP_DEVICE void share_values(float* to, int first, const Values& x) const {
#pragma unroll
    for (int n = 0; n < value_tiles; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) to[row_of(i) * stride + first + 8 * n + 2 * t + (i & 1)] = x[n][i];
  }

  // Two tiles of a strip as an A operand.
  static FWP_DEVICE void operand(Float2 (&a)[4], const Strip& strip, int m) {
    a[0] = {strip[2 * m][0], strip[2 * m][1]};
    a[1] = {strip[2 * m][2], strip[2 * m][3]};
    a[2] = {strip[2 * m + 1][0], strip[2 * m + 1][1]};
    a[3] = {strip[2 * m + 1][2], strip[2 * m + 1][3]};
  }
  // The same with a number of tiles that is not known to the compiler: one copy of what follows instead of one a tile.
  static FWP_DEVICE void operand_at(Float2 (&a)[4], const Strip& strip, int tile) {
    operand(a, strip, 0);
#pragma unroll
    for (int m = 1; m < tiles; ++m)
      if (m == tile) operand(a, strip, m);
  }
  // x += a (16 x 16) rows, rows of `from` [..][stride] 16 m .. 16 m + 15, columns first ..
  FWP_DEVICE void add_product(Values& x, const Float2 (&a)[4], const float* from, int m, int first) const {
    const float* at = from + (16 * m + 2 * t) * stride + first + g;
#pragma unroll
    for (int n = 0; n < value_tiles; ++n)
      P::mma(x[n], a, Float2{at[8 * n], at[stride + 8 * n]}, Float2{at[8 * stride + 8 * n], at[9 * stride + 8 * n]});
  }
  // x += strip rows
  FWP_DEVICE void add_read(Values& x, const Strip& strip, const float* from, int first_tile, int last_tile, int first) const {
#pragma unroll
    for (int m = 0; m < tiles; ++m)
      if (m >= first_tile && m < last_tile) {
        Float2 a[4];
        operand(a, strip, m);
        add_product(x, a, from, m, first);
      }
  }

  // Inverts a unit lower triangular 16 x 16 block in place, [16][17] in shared memory; a lane a column.
  FWP_DEVICE void invert(float* block) const {
    float x[16];
    if (lane < 16) {
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        float sum = i == lane ? 1.f : 0.f;
#pragma unroll
        for (int j = 0; j < i; ++j) sum -= block[i * 17 + j] * x[j];
        x[i] = sum;
      }
    }
    sync_warp();
    if (lane < 16)
#pragma unroll
      for (int i = 0; i < 16; ++i) block[i * 17 + lane] = x[i];
    sync_warp();
  }

  // ---- states ----

  // Calls f with whether every base row is a feature and every column of a block of values there: then it need not look.
  template <class F> FWP_DEVICE void for_state(int columns, F f) const {
    const bool full = columns % COLUMNS == 0 && (c.map == Map::dpfp    ? base_rows == modulus
                                                 : c.map == Map::favor ? c.d_dot == slabs * base_rows
                                                                       : c.d_key == slabs * base_rows);
    if (full) f(std::true_type{});
    else f(std::false_type{});
  }

  // Products of 16 features of own tokens, from base row i on, with the state's rows of these features.
  struct Rows16 {
    Float2 W[value_tiles][2], z[2];  // operands: columns from `first` on; column 0
  };
  FWP_DEVICE void load_rows(Rows16& to, int slab, int j, int i, const Columns<const float>& from, int first) const {
    for_state(from.count, [&](auto full) {
      int f[4];
      bool there[4];
      const int number = full.value ? feature_number(slab, j, i) + 2 * t : 0;  // the others follow
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int next = (e & 1) + 8 * (e >> 1);
        f[e] = full.value ? number + next : feature_number(slab, j, i + 2 * t + next);
        there[e] = full.value || f[e] >= 0;
      }
      const float* rows[4];
#pragma unroll
      for (int e = 0; e < 4; ++e) rows[e] = from.W + int64_t(f[e]) * from.stride + first + g;
#pragma unroll
      for (int n = 0; n < value_tiles; ++n) {
        float w[4];
#pragma unroll
        for (int e = 0; e < 4; ++e)
          w[e] = full.value || (there[e] && first + 8 * n + g < from.count) ? rows[e][8 * n] : 0.f;
        to.W[n][0] = {w[0], w[1]};
        to.W[n][1] = {w[2], w[3]};
      }
      float w[4];
#pragma unroll
      for (int e = 0; e < 4; ++e) w[e] = from.z && there[e] && g == 0 ? from.z[f[e]] : 0.f;
      to.z[0] = {w[0], w[1]};
      to.z[1] = {w[2], w[3]};
    });
  }
  // x, xz (its column 0) += features . rows
  FWP_DEVICE void add_rows(Values& x, float (&xz)[4], const Pair (&features)[4], const Rows16& rows, bool z) const {
    Float2 a[4];
#pragma unroll
    for (int e = 0; e < 4; ++e) a[e] = P::values(features[e]);
#pragma unroll
    for (int n = 0; n < value_tiles; ++n) P::mma(x[n], a, rows.W[n][0], rows.W[n][1]);
    if (z) P::mma(xz, a, rows.z[0], rows.z[1]);
  }
  // Column 0 of such a product for the tokens g and g + 8.
  FWP_DEVICE void first_column(float (&zx)[2], const float (&xz)[4]) const {
    zx[0] = shuffle(xz[0], lane & ~3);
    zx[1] = shuffle(xz[2], lane & ~3);
  }

  // x[e], xz[e] += 16 features (rows), those of tile[e], of `side`, times the rows of `from` (column 0 of xz: times
  // weights_z); row k of `from` is multiplied by weights[k].
  template <int N>
  FWP_DEVICE void add_outer(Values (&x)[N], float (&xz)[N][4], const Element* side, const Tile16 (&tile)[N],
                            const float* from, int first, const float* weights, const float* weights_z,
                            int token_tiles) const {
#pragma unroll 1
    for (int m = 0; m < token_tiles; ++m) {
      Pair p[N][4];
      along_tokens(p, side, 16 * m, [&](int e) { return tile[e].i; }, [&](int e) { return -tile[e].j; });
      const int k = 16 * m + 2 * t;
      const float w[4] = {weights[k], weights[k + 1], weights[k + 8], weights[k + 9]};
      const float* at = from + k * stride + first + g;
      Float2 b[value_tiles][2];
#pragma unroll
      for (int n = 0; n < value_tiles; ++n) {
        b[n][0] = {w[0] * at[8 * n], w[1] * at[stride + 8 * n]};
        b[n][1] = {w[2] * at[8 * stride + 8 * n], w[3] * at[9 * stride + 8 * n]};
      }
#pragma unroll
      for (int e = 0; e < N; ++e) {
        Float2 a[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) a[i] = P::values(p[e][i]);
#pragma unroll
        for (int n = 0; n < value_tiles; ++n) P::mma(x[e][n], a, b[n][0], b[n][1]);
        if (weights_z) {
          const float one = g == 0 ? 1.f : 0.f;
          P::mma(xz[e], a, Float2{one * weights_z[k], one * weights_z[k + 1]},
                 Float2{one * weights_z[k + 8], one * weights_z[k + 9]});
        }
      }
    }
  }
  // Calls f(e, r, row, full): `row` is the state's number of row g + 8 r of tile[e], -1 if there is none.
  template <int N, class F> FWP_DEVICE void for_outer(int slab, const Tile16 (&tile)[N], int columns, F f) const {
    for_state(columns, [&](auto full) {
#pragma unroll
      for (int e = 0; e < N; ++e) {
        const int start = full.value ? feature_number(slab, tile[e].j, tile[e].i) + g : 0;
#pragma unroll
        for (int r = 0; r < 2; ++r)
          f(e, r, full.value ? start + 8 * r : feature_number(slab, tile[e].j, tile[e].i + g + 8 * r), full);
      }
    });
  }
  // What add_outer begins with: the state, or zeros.
  template <int N>
  FWP_DEVICE void load_outer(Values (&x)[N], float (&xz)[N][4], int slab, const Tile16 (&tile)[N], int first,
                             const Columns<const float>& from) const {
#pragma unroll
    for (int e = 0; e < N; ++e) {
      clear(x[e]);
      xz[e][0] = xz[e][1] = xz[e][2] = xz[e][3] = 0;
    }
    if (!from.W) return;
    for_outer(slab, tile, from.count, [&](int e, int r, int row, auto full) {
      const float* at = from.W + int64_t(row) * from.stride + first + 2 * t;
#pragma unroll
      for (int n = 0; n < value_tiles; ++n) {
        const int column = first + 8 * n + 2 * t;
        Float2 w;
        if constexpr (full.value) w = Single::load_pair(Type::float32, at, 8 * n);
        else w = {row >= 0 && column < from.count ? at[8 * n] : 0.f, row >= 0 && column + 1 < from.count ? at[8 * n + 1] : 0.f};
        x[e][n][2 * r] = w.x;
        x[e][n][2 * r + 1] = w.y;
      }
      if (from.z && row >= 0 && t == 0) xz[e][2 * r] = from.z[row];
    });
  }
  // Stores what add_outer gathered; z, which every block of columns reads, with the last of them.
  template <int N>
  FWP_DEVICE void store_outer(const Values (&x)[N], const float (&xz)[N][4], int slab, const Tile16 (&tile)[N], int first,
                              const Columns<float>& to) const {
    const bool last = first + COLUMNS >= to.count;
    for_outer(slab, tile, to.count, [&](int e, int r, int row, auto full) {
      if (row < 0) return;
      float* at = to.W + int64_t(row) * to.stride + first + 2 * t;
#pragma unroll
      for (int n = 0; n < value_tiles; ++n) {
        const int column = first + 8 * n + 2 * t;
        if constexpr (full.value) {
          Single::store_pair(Type::float32, at, 8 * n, {x[e][n][2 * r], x[e][n][2 * r + 1]});
        } else {
          if (column < to.count) at[8 * n] = x[e][n][2 * r];
          if (column + 1 < to.count) at[8 * n + 1] = x[e][n][2 * r + 1];
        }
      }
      if (to.z && last && t == 0) to.z[row] = xz[e][2 * r];
    });
  }

  // ---- the next piece ----

  // Asks for the inputs of `next`, and for the columns of values from `column` on.
  FWP_DEVICE static void fetch(const Call& c, const Piece& next, int column) {
    const int size = sizeof(typename P::Element), i = thread_index() % LT, line = 128;
    const auto ask = [&](const auto& rows, int first, int width) {
      const char* at = static_cast<const char*>(rows.data) +
                       size * (next.head / c.heads * rows.batch + (next.first + i) * rows.time +
                               next.head % c.heads * rows.head + first);
      for (int d = 0; d < size * width; d += line) prefetch(at + d);
    };
    if (thread_index() < LT) {
      if (i < next.queries) ask(c.q, 0, c.d_key);
    } else if (i < next.keys) {
      ask(c.k, 0, c.d_key);
      ask(c.v, column, c.d_value - column < COLUMNS ? c.d_value - column : COLUMNS);
    }
  }
};

constexpr int smallest_general_block = 64;  // fewer instances

// f(Tokens<LT>) with the smallest block of tokens that holds the call.
template <int LT> struct Tokens {
  static constexpr int count = LT;
};
template <class F> auto with_tokens(const Call& c, F f) {
  int longest = c.targets > c.sources ? c.targets : c.sources;
  if (longest > c.chunk) longest = c.chunk;
  if (is_general(c) && longest < smallest_general_block) longest = smallest_general_block;
  if (longest <= 16) return f(Tokens<16>{});
  if (longest <= 32) return f(Tokens<32>{});
  if (longest <= 64) return f(Tokens<64>{});
  return f(Tokens<longest_chunk>{});
}
template <class P> int bytes_of(const Call& c, bool backward) {
  return with_tokens(c, [&](auto tokens) {
    constexpr int LT = decltype(tokens)::count;
    if (backward || !is_general(c)) return Shared<P, LT>().lay(nullptr, c, backward);
    return Shared<P, LT, slice_columns>().lay(nullptr, c, false) + Carried().lay(nullptr, c);
  });
}

}  // namespace fwp::gpu
