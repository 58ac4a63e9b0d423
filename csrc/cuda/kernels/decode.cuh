// A decoding step. Each token takes one launch; a block of four warps serves one (row, head, 64 columns of values).
// It reads the n positions before the token and the state (W, z) before those (equations: fwp_fairseq/ops/decoding.py):
//
//     q = phi(q_t), k = phi(k_t), divided by their sums where the rule asks for it;  a_j = k_j.q, b_j = k_j.k
//     N = sum_j a_j u_j + W q,  den = sum_j a_j + z q;     O = sum_j b_j u_j + W k,  seen = sum_j b_j + z k      (delta)
//     u_t = v_t                         or  beta (v_t - O / (seen + eps))                                   sum or delta
//     out = N + (q.k) u_t,  divided by  den + q.k + eps  where normalised;     k_t, u_t are appended to the cache
//
// Under the gated rule a_j is multiplied by beta_j and all later 1 - beta, W and z by the product of every 1 - beta of the
// block, then N and den by 1 - beta, and q.k by beta, which is appended too. Under the gated delta rule a_j and b_j are
// multiplied by all later alpha, W and z by the product of every alpha, then N, den, O and seen (but for eps) by alpha, which is
// appended.
//
// Without k and v, out = N or N / (den + eps), and all tokens are served by one launch.
//
// A warp takes 16 positions at a time, each from the row of storage that the table names. One product of matrices gives
// their a_j and b_j: its left operand has the keys' features as rows, computed as they are loaded from shared memory
// (with offsets: r_i r_{i-j} of neighbouring words), its right one has q and k as columns. Sums over u_j are float.
// Meanwhile the next 16 positions are fetched. Only k_t, u_t, out and the table's new entry are written to memory.
#pragma once

#include <type_traits>

#include "cached.cuh"

namespace fwp::gpu {

// `fetched` is how many cached numbers of a position are loaded at a time. With offsets they begin with the halo, which
// is rolled in from before; at the key's beginning it is the key's other end with the other sign. Shared memory then
// holds both halves of r, relu(x) and relu(-x), each behind its halo; without offsets, the numbers themselves.
constexpr int fetched = 72, held_ld = 2 * fetched + 8;  // so rows begin 48 bytes apart modulo 128: no bank conflicts
FWP_BOTH int halves(const DecodeCall& c) { return has_offsets(c.map) ? 2 : 1; }
FWP_BOTH int halo_of(const DecodeCall& c) { return has_offsets(c.map) ? round_up(c.nu, 8) : 0; }
FWP_BOTH int slab_width(const DecodeCall& c) { return (fetched - halo_of(c)) / 16 * 16; }
static_assert(most_offsets <= fetched - 16);

template <class P> struct DecodeShared {
  float* x;                      // [2][d_key]: inputs of the query and of the key
  float* phi;                    // [2][d_dot]: their features as the rule sees them
  typename P::Element *operand;  // [2][offsets][halves][d_cached, padded]: phi over `factor`, so near 1
  typename P::Element *rows;     // [warps][16][held_ld]
  float *sums;                   // [warps][5]
  float *numerators;             // [warps][2][column_block]
  float *denominators;           // [warps][2]

  FWP_BOTH int lay(char* base, const DecodeCall& c) {
    int used = 0;
    const auto take = [&](auto*& pointer, int count) {
      pointer = reinterpret_cast<std::remove_reference_t<decltype(pointer)>>(base + used);
      used = round_up(used + count * int(sizeof *pointer), 16);
    };
    take(rows, decode_warps * 16 * held_ld);
    take(x, 2 * c.d_key);
    take(phi, 2 * c.d_dot);
    take(operand, 2 * (has_offsets(c.map) ? c.nu : 1) * halves(c) * round_up(c.d_cached, 16));
    take(sums, decode_warps * 5);
    take(numerators, decode_warps * 2 * column_block);
    take(denominators, decode_warps * 2);
    return used;
  }
};

FWP_DEVICE uint32_t pair_at(const uint16_t* from) { return *reinterpret_cast<const uint32_t*>(from); }
FWP_DEVICE Float2 pair_at(const float* from) { return {from[0], from[1]}; }
// The pair one number before `pair`, whose other neighbour is `before`.
FWP_DEVICE uint32_t rolled(uint32_t before, uint32_t pair) { return before >> 16 | pair << 16; }
FWP_DEVICE Float2 rolled(Float2 before, Float2 pair) { return {before.y, pair.x}; }

// RULE: of steps. Reading alone is the same under the sum and the delta rule, and done by the sum rule's kernel. N queries
// read the positions together: 2 in the steps of rules that correct (query and key), else 1. Reading alone under the gated
// delta rule takes its steps' kernel, with a key that is padding.
template <class P, Rule RULE> struct Decoder {
  static constexpr int N = corrects(RULE) ? 2 : 1;
  static constexpr bool gated = RULE == Rule::gated, decaying = decays(RULE), reads_with_key = N == 2 && decaying;
  static_assert(serves(RULE));
  using Element = typename P::Element;
  using Pair = typename P::Pair;
  static constexpr int octets = (fetched + 15) / 16;  // eights of a position for each of its two lanes
  static constexpr int columns = 4, lanes_a_row = column_block / columns, row_groups = 32 / lanes_a_row;

  const DecodeCall& c;
  DecodeShared<P> s;
  const int thread, lane, warp, g, t;
  int row, token, h, column;     // column: the first one that this lane sums
  int offsets, padded, features, slabs;  // d_cached in whole 16s; that with all halves; slabs it takes
  Element* own;                  // the warp's rows

  // Loads under way: keys of position lane / 2 of the 16, and `columns` values of every row_groups-th position.
  Numbers<P, 8> keys[octets];
  Numbers<P, columns> written[16 / row_groups];

  float gathered[N][columns], denominator[N], factor[2];
  float product;  // q.k
  float* weights;  // decaying: of each position, behind them that of the state; where the numerators come later
  static_assert(most_weighed < decode_warps * 2 * column_block);

  FWP_DEVICE explicit Decoder(const DecodeCall& call)
      : c(call), thread(thread_index()), lane(thread % 32), warp(thread / 32), g(lane / 4), t(lane % 4) {
    s.lay(shared_memory(s.lay(nullptr, c)), c);
    int index = block_index();
    h = index % c.heads;
    index /= c.heads;
    column = index % column_blocks(c) * column_block + lane % lanes_a_row * columns;
    index /= column_blocks(c);
    row = writes() ? index : index / c.tokens;
    token = writes() ? c.token : index % c.tokens;
    offsets = has_offsets(c.map) ? c.nu : 1;
    padded = round_up(c.d_cached, 16);
    features = halves(c) * padded;
    slabs = (padded + slab_width(c) - 1) / slab_width(c);
    own = s.rows + warp * 16 * held_ld;
    weights = s.numerators;
  }

  FWP_DEVICE bool writes() const { return c.k.data != nullptr; }
  FWP_DEVICE bool rolls() const { return has_offsets(c.map); }
  template <class V> FWP_DEVICE int64_t offset(const Rows<V>& rows) const {
    return row * rows.batch + token * rows.time + h * rows.head;
  }
  FWP_DEVICE bool is_pad() const {
    return c.key_padding_mask.data &&
           c.key_padding_mask.data[row * c.key_padding_mask.batch + token * c.key_padding_mask.time];
  }

  FWP_DEVICE void run() {
    const int positions = writes() ? c.count + token : c.count, tiles = (positions + 15) / 16;
    fetch_keys(16 * warp, 0, positions);
    fetch_written(16 * warp, positions);
    if (decaying && warp == 0) weigh(positions);
    load_features(positions);
    clear();
    FWP_ROLLED for (int tile = warp; tile < tiles; tile += decode_warps) {
      float p[4] = {};
      FWP_ROLLED for (int slab = 0; slab < slabs; ++slab) {
        const float unit = share_keys(slab);
        sync_warp();
        if (slab + 1 < slabs) fetch_keys(16 * tile, slab + 1, positions);
        else fetch_keys(16 * (tile + decode_warps), 0, positions);
        multiply(p, slab, unit);
        sync_warp();
      }
      if constexpr (decaying)
        FWP_UNROLL for (int n = 0; n < 2; ++n) {
          const int position = 16 * tile + g + 8 * n;
          const float weight = position < positions ? weights[position] : 0.f;
          FWP_UNROLL for (int e = 0; e < N; ++e) p[2 * n + e] *= weight;
        }
      gather(p);
      fetch_written(16 * (tile + decode_warps), positions);
    }
    if (c.W) read_state(decaying ? weights[positions] : 1.f);
    if (decaying) sync_block();  // until then other warps read weights
    finish(positions);
  }

  // Computes the weights, 32 positions at a time from the last one on. By one warp; others read them barriers later.
  FWP_DEVICE void weigh(int positions) const {
    float later = 1;
    FWP_ROLLED for (int first = (positions - 1) / 32 * 32; first >= 0 && positions; first -= 32) {
      const int p = first + lane;
      const float strength = p < positions ? c.strengths[place_of(c, row, h, p)] : gated ? 0.f : 1.f;
      const float own = gated ? strength : 1.f;
      float left = gated ? 1 - strength : strength;  // of all positions from this lane's to the 32nd
      FWP_UNROLL for (int d = 1; d < 32; d *= 2) {
        const float next = shuffle(left, lane + d < 32 ? lane + d : lane);
        if (lane + d < 32) left *= next;
      }
      const float next = shuffle(left, lane < 31 ? lane + 1 : lane);
      if (p < positions) weights[p] = own * (lane < 31 ? next * later : later);
      later *= shuffle(left, 0);
    }
    if (lane == 0) weights[positions] = later;
  }

  // ---- the query's and the key's features ----

  // Calls f(feature or -1 in the padding, place in the operand) for this thread's share of the operand.
  template <class F> FWP_DEVICE void for_own_features(F f) const {
    FWP_ROLLED for (int at = thread; at < features; at += decode_threads) {
      const bool second = at >= padded;
      const int i = second ? at - padded : at, base = second ? i + c.d_cached : i;
      FWP_ROLLED for (int j = 0; j < offsets; ++j) f(i < c.d_cached ? j * base_width(c) + base : -1, j * features + at);
    }
  }
  FWP_DEVICE void compute_features(const float* x, float* phi) const {
    const int count = with_map(c.map, [&](auto map) { return Phi<map.value>::decode_count(c); });
    FWP_ROLLED for (int i = thread; i < count; i += decode_threads)
      with_map(c.map, [&](auto map) { Phi<map.value>::decode(c, x, phi, i); });
  }

  // Over all threads: the sums of sums[0 .. 2], and the largest of sums[3] and of sums[4].
  FWP_DEVICE void add_up(float (&sums)[5]) const {
    FWP_UNROLL for (int d = 1; d < 32; d *= 2)
      FWP_UNROLL for (int i = 0; i < 5; ++i) {
        const float other = shuffle_xor(sums[i], d);
        sums[i] = i < 3 ? sums[i] + other : other > sums[i] ? other : sums[i];
      }
    if (lane == 0)
      for (int i = 0; i < 5; ++i) s.sums[warp * 5 + i] = sums[i];
    sync_block();
    FWP_UNROLL for (int i = 0; i < 5; ++i) {
      float total = s.sums[i];
      for (int w = 1; w < decode_warps; ++w) {
        const float other = s.sums[w * 5 + i];
        total = i < 3 ? total + other : other > total ? other : total;
      }
      sums[i] = total;
    }
  }
  // Sets s.phi, s.operand, factor and product, and writes the key to its position in storage.
  FWP_DEVICE void load_features(int position) {
    const bool pad = writes() ? is_pad() : reads_with_key;
    const int inputs = writes() || reads_with_key ? 2 : 1;
    for (int i = thread; i < inputs * c.d_key; i += decode_threads) {
      const bool is_key = i >= c.d_key;
      const Rows<const void>& from = is_key ? c.k : c.q;
      s.x[i] = is_key && pad ? 0.f : P::load(c.type, from.data, offset(from) + (is_key ? i - c.d_key : i));
    }
    sync_block();
    for (int n = 0; n < inputs; ++n) compute_features(s.x + n * c.d_key, s.phi + n * c.d_dot);
    sync_block();
    float sums[5] = {};  // sums of q, k and q k; the largest |q| and |k|
    for_own_features([&](int feature, int) {
      if (feature < 0) return;
      const float q = s.phi[feature], k = inputs == 2 ? s.phi[c.d_dot + feature] : 0.f;
      sums[0] += q;
      sums[1] += k;
      sums[2] += q * k;
      sums[3] = absolute(q) > sums[3] ? absolute(q) : sums[3];
      sums[4] = absolute(k) > sums[4] ? absolute(k) : sums[4];
    });
    add_up(sums);
    float scale[2] = {1, 1};
    FWP_UNROLL for (int n = 0; n < 2; ++n) {
      if (c.normalize_features) scale[n] = reciprocal(sums[n] + c.eps);
      if (n == 1 && pad) scale[n] = 0;
      factor[n] = P::scaled ? power_below(sums[3 + n] * scale[n]) : 1.f;
    }
    product = sums[2] * scale[0] * scale[1];
    const float by[2] = {1 / factor[0], 1 / factor[1]};
    for_own_features([&](int feature, int at) {
      FWP_UNROLL for (int n = 0; n < 2; ++n)
        if (n < inputs) {
          const float phi = feature < 0 ? 0.f : s.phi[n * c.d_dot + feature] * scale[n];
          if (feature >= 0) s.phi[n * c.d_dot + feature] = phi;
          s.operand[n * offsets * features + at] = P::element(phi * by[n]);
          if (n == 1 && feature >= 0 && !rolls() && (!reads_with_key || writes())) keep(position, feature, phi);
        }
    });
    if (writes() && rolls()) {
      const float root = sqrtf(scale[1]);
      for (int d = thread; d < c.d_key; d += decode_threads) keep(position, d, s.x[c.d_key + d] * root);
    }
    if (writes() && thread == 0 && h == 0 && column == 0) c.ancestors[row * c.ancestors_ld + position] = row;
    sync_block();
  }
  // The first block of columns writes it. A key whose features are all 0 may, once scaled, exceed float16's range.
  FWP_DEVICE void keep(int position, int i, float x) const {
    if (column >= column_block) return;
    constexpr float most = 65504;
    if (c.type == Type::float16) x = x > most ? most : x < -most ? -most : x;
    P::store(c.type, c.keys, place_of(c, row, h, position) * c.d_cached + i, x);
  }

  // ---- positions ----

  // The number of the slab with which octet e of this lane's position begins; negative in the halo.
  FWP_DEVICE int octet_start(int e) const { return 8 * (2 * e + lane % 2) - halo_of(c); }
  FWP_DEVICE bool octet_held(int slab, int e) const {
    const int start = octet_start(e);
    return start < slab_width(c) && slab * slab_width(c) + start < padded;
  }
  // An index before the key's beginning becomes one at its end; returns whether that number's sign changes.
  FWP_DEVICE bool wrap(int& i) const {
    if (i >= 0) return false;
    i += c.d_key;
    if (i >= 0) return true;
    i += c.d_key;
    return false;
  }

  FWP_DEVICE void fetch_keys(int first, int slab, int positions) {
    const int p = first + lane / 2;
    if (first >= positions) return;
    const bool there = p < positions;
    const int64_t at = there ? place_of(c, row, h, p) * c.d_cached : 0;
    FWP_UNROLL for (int e = 0; e < octets; ++e) {
      keys[e].clear();
      if (!there || !octet_held(slab, e)) continue;
      const int start = slab * slab_width(c) + octet_start(e);
      if (c.aligned) {
        int i = start;
        wrap(i);
        if (i >= 0 && i < c.d_cached) keys[e].load(c.keys, at + i);
        continue;
      }
      FWP_UNROLL for (int n = 0; n < 8; ++n) {
        int i = start + n;
        const bool negated = wrap(i);
        if (i >= 0 && i < c.d_cached) keys[e].load_one(n, c.keys, at + i, negated);
      }
    }
  }
  FWP_DEVICE void fetch_written(int first, int positions) {
    if (first >= positions) return;
    FWP_UNROLL for (int i = 0; i < 16 / row_groups; ++i) {
      written[i].clear();
      const int p = first + lane / lanes_a_row + row_groups * i;
      if (p >= positions || column >= c.d_value) continue;
      const int64_t at = place_of(c, row, h, p) * c.d_value + column;
      if (c.aligned) {
        written[i].load(c.written, at);
        continue;
      }
      FWP_UNROLL for (int n = 0; n < columns; ++n)
        if (column + n < c.d_value) written[i].load_one(n, c.written, at + n, false);
    }
  }

  // Stores the fetched numbers in the warp's shared memory as operands near 1. Returns unit: true base = unit x stored.
  FWP_DEVICE float share_keys(int slab) {
    float x[8], unit = 1;
    if (P::scaled) {
      float largest = 0;
      FWP_UNROLL for (int e = 0; e < octets; ++e) {
        keys[e].read(c.type, x);
        FWP_UNROLL for (int n = 0; n < 8; ++n) largest = absolute(x[n]) > largest ? absolute(x[n]) : largest;
      }
      const float other = shuffle_xor(largest, 1);
      unit = power_below(other > largest ? other : largest);
    }
    const float by = 1 / unit;
    Element* to = own + lane / 2 * held_ld + 8 * (lane % 2);
    FWP_UNROLL for (int e = 0; e < octets; ++e) {
      if (!octet_held(slab, e)) continue;
      int i = slab * slab_width(c) + octet_start(e);
      const bool negated = wrap(i) && c.aligned;
      keys[e].read(c.type, x);
      FWP_UNROLL for (int n = 0; n < 8; ++n) x[n] *= negated ? -by : by;
      Numbers<P, 8>::share(x, rolls(), to + 16 * e);
      if (!rolls()) continue;
      FWP_UNROLL for (int n = 0; n < 8; ++n) x[n] = -x[n];
      Numbers<P, 8>::share(x, true, to + fetched + 16 * e);
    }
    return unit;
  }

  // p += the slab's part of a_j and b_j: p[0], p[1] are those of position g, p[2], p[3] those of position g + 8.
  FWP_DEVICE void multiply(float (&p)[4], int slab, float unit) const {
    const int first = slab * slab_width(c), count = padded - first < slab_width(c) ? padded - first : slab_width(c);
    float sum[4] = {};
    FWP_ROLLED for (int half = 0; half < halves(c); ++half) {
      const Element* at = own + g * held_ld + half * fetched + halo_of(c) + 2 * t;
      const Element* with = s.operand + g % N * (offsets * features) + half * padded + first + 2 * t;
      FWP_ROLLED for (int i = 0; i < count; i += 16, at += 16, with += 16) {
        Pair x[4];
        pairs(x, at);
        if (rolls()) add_rolled(sum, x, at, with);
        else P::mma(sum, x, pair_at(with), pair_at(with + 8));
      }
    }
    const float by = rolls() ? unit * unit : unit;
    const float low = shuffle(by, 2 * g), high = shuffle(by, 2 * g + 16);
    FWP_UNROLL for (int n = 0; n < 2; ++n) {
      p[n] += sum[n] * (low * factor[n % N]);
      p[2 + n] += sum[2 + n] * (high * factor[n % N]);
    }
  }
  // sum += products of the features r_i r_{i-j} of every offset j; x holds r_i.
  FWP_DEVICE void add_rolled(float (&sum)[4], const Pair (&x)[4], const Element* at, const Element* with) const {
    Pair near[4], far[4], y[4];
    FWP_UNROLL for (int n = 0; n < 4; ++n) near[n] = x[n];
    FWP_ROLLED for (int j = 1; j <= c.nu; j += 2, with += 2 * features) {
      pairs(far, at - (j + 1));
      FWP_UNROLL for (int n = 0; n < 4; ++n) y[n] = P::multiply(x[n], rolled(far[n], near[n]));
      P::mma(sum, y, pair_at(with), pair_at(with + 8));
      if (j < c.nu) {
        FWP_UNROLL for (int n = 0; n < 4; ++n) y[n] = P::multiply(x[n], far[n]);
        P::mma(sum, y, pair_at(with + features), pair_at(with + features + 8));
      }
      FWP_UNROLL for (int n = 0; n < 4; ++n) near[n] = far[n];
    }
  }
  FWP_DEVICE void pairs(Pair (&x)[4], const Element* at) const {
    x[0] = pair_at(at);
    x[1] = pair_at(at + 8 * held_ld);
    x[2] = pair_at(at + 8);
    x[3] = pair_at(at + 8 * held_ld + 8);
  }

  FWP_DEVICE void clear() {
    FWP_UNROLL for (int n = 0; n < N; ++n) {
      denominator[n] = 0;
      FWP_UNROLL for (int i = 0; i < columns; ++i) gathered[n][i] = 0;
    }
  }
  // gathered += sum_j a_j u_j and sum_j b_j u_j over the 16 positions.
  FWP_DEVICE void gather(const float (&p)[4]) {
    FWP_UNROLL for (int n = 0; n < N; ++n)
      if (t == 0) denominator[n] += p[n] + p[2 + n];
    FWP_UNROLL for (int i = 0; i < 16 / row_groups; ++i) {
      float x[columns];
      written[i].read(c.type, x);
      FWP_UNROLL for (int n = 0; n < N; ++n) {
        const float by = shuffle(p[i * row_groups / 8 * 2 + n], (lane / lanes_a_row + row_groups * i) % 8 * 4);
        FWP_UNROLL for (int e = 0; e < columns; ++e) gathered[n][e] += by * x[e];
      }
    }
  }

  // ---- the state ----

  static FWP_DEVICE float weigh_feature(float phi, float weight) { return decaying ? phi * weight : phi; }
  FWP_DEVICE void read_state(float weight) {
    const int64_t head = state_of(c, row, h);
    const float* W = c.W + head * c.d_dot * c.d_value + column;
    const bool whole = c.d_value % columns == 0;
#pragma unroll 4
    for (int i = thread / lanes_a_row; i < c.d_dot; i += decode_threads / lanes_a_row) {
      float phi[N], any = 0;
      FWP_UNROLL for (int n = 0; n < N; ++n) any = (phi[n] = weigh_feature(s.phi[n * c.d_dot + i], weight)) != 0 ? 1.f : any;
      if (any == 0 || column >= c.d_value) continue;
      Numbers<Single, columns> w;
      w.clear();
      const int64_t at = int64_t(i) * c.d_value;
      if (whole) w.load(W, at);
      else
        FWP_UNROLL for (int e = 0; e < columns; ++e)
          if (column + e < c.d_value) w.x[e] = W[at + e];
      FWP_UNROLL for (int n = 0; n < N; ++n)
        FWP_UNROLL for (int e = 0; e < columns; ++e) gathered[n][e] += phi[n] * w.x[e];
    }
    if (!c.z) return;
    for (int i = thread; i < c.d_dot; i += decode_threads)
      FWP_UNROLL for (int n = 0; n < N; ++n) denominator[n] += weigh_feature(s.phi[n * c.d_dot + i], weight) * c.z[head * c.d_dot + i];
  }

  // ---- the output ----

  // What a numerator is multiplied by.
  FWP_DEVICE float quotient(float total) const { return c.normalize_output ? reciprocal(total + c.eps) : 1.f; }
  static FWP_DEVICE float times(float x, float by) { return by == 0 ? 0.f : x * by; }

  FWP_DEVICE void finish(int position) {
    FWP_UNROLL for (int n = 0; n < N; ++n) {
      FWP_UNROLL for (int d = 1; d < 32; d *= 2) denominator[n] += shuffle_xor(denominator[n], d);
      FWP_UNROLL for (int e = 0; e < columns; ++e)
        FWP_UNROLL for (int d = lanes_a_row; d < 32; d *= 2) gathered[n][e] += shuffle_xor(gathered[n][e], d);
    }
    FWP_UNROLL for (int n = 0; n < N; ++n) {
      if (lane == 0) s.denominators[warp * 2 + n] = denominator[n];
      if (lane < lanes_a_row)
        FWP_UNROLL for (int e = 0; e < columns; ++e)
          s.numerators[(warp * 2 + n) * column_block + columns * lane + e] = gathered[n][e];
    }
    sync_block();
    const int at = column - lane % lanes_a_row * columns + thread;
    if (thread < column_block && at < c.d_value) {
      float total[N] = {}, sum[N] = {};
      for (int w = 0; w < decode_warps; ++w)
        FWP_UNROLL for (int n = 0; n < N; ++n) {
          total[n] += s.denominators[w * 2 + n];
          sum[n] += s.numerators[(w * 2 + n) * column_block + thread];
        }
      if (writes()) {
        float u = 0, by = product;
        if constexpr (gated) {
          const float beta = is_pad() ? 0.f : c.beta.data[offset(c.beta)];
          if (at == 0) c.strengths[place_of(c, row, h, position)] = beta;
          sum[0] *= 1 - beta;
          total[0] *= 1 - beta;
          by *= beta;
        } else if constexpr (decaying) {
          const float alpha = is_pad() ? 1.f : c.alpha.data[offset(c.alpha)];
          if (at == 0) c.strengths[place_of(c, row, h, position)] = alpha;
          FWP_UNROLL for (int n = 0; n < N; ++n) sum[n] *= alpha, total[n] *= alpha;
        }
        if (!is_pad()) {
          u = P::load(c.type, c.v.data, offset(c.v) + at);
          if constexpr (N == 2) u = c.beta.data[offset(c.beta)] * (u - times(sum[1], quotient(total[1])));
        }
        P::store(c.type, c.written, place_of(c, row, h, position) * c.d_value + at, u);
        sum[0] += by * u;
        total[0] += by;
      }
      P::store(c.type, c.out.data, offset(c.out) + at, times(sum[0], quotient(total[0])));
    }
  }
};

template <class P, Rule RULE> FWP_KERNEL(decode_threads, P::scaled ? 5 : 1) decode_kernel(FWP_CONSTANT DecodeCall c) {
  Decoder<P, RULE>(c).run();
}

template <class P> int decode_bytes_of(const DecodeCall& c) {
  DecodeShared<P> shared;
  return shared.lay(nullptr, c);
}
template <class P> const char* launch_decode(const DecodeCall& c, void* stream) {
  const bool writes = c.k.data;
  const int heads = c.rows * c.heads * column_blocks(c), bytes = decode_bytes_of<P>(c);
  return with_rule(writes || c.rule != Rule::delta ? c.rule : Rule::sum, [&](auto rule) -> const char* {
    const auto kernel = decode_kernel<P, decltype(rule)::value>;
    if (!writes) return launch(kernel, heads * c.tokens, decode_threads, bytes, static_cast<Stream>(stream), c);
    const char* error = nullptr;
    DecodeCall one = c;  // one launch a token: each reads what the one before wrote
    for (one.token = 0; one.token < c.tokens && !error; ++one.token)
      error = launch(kernel, heads, decode_threads, bytes, static_cast<Stream>(stream), one);
    return error;
  });
}

}  // namespace fwp::gpu
