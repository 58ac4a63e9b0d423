// Forward of one head in bfloat16 with AMX tiles; inputs and output bfloat16, sums, state and the triangular system in
// float32. Included by kernels_amx_bf16.cpp only. As head.h, but 32 tokens at a time, so that all but the keys so far
// stays in the first-level cache, and with phi unscaled: the keys' scales s are in U, the queries' t in the last step.
//
//     P = M o (Q K^T)     M: causal mask, or ones
//     Y = K W + stril(K K^T) U,  U = s (beta V - s rate Y)      delta; rate = beta, or beta / (s z.k + eps)
//     U = s V                                                   sum
//     N = t (P U + Q W),  out = N or N / (t (P s + Q z) + eps)
//     W <- W + K^T U,  z <- z + K^T s
//
// Where the output is normalised, z is kept as one more column of W, and s as one of U.

struct PlanBf16 {
  idx chunk, chunks;         // source positions a chunk; chunks
  idx features, narrow, wide;
  bool causal, reads_state;  // reads_state: targets read the final state, not the Gram matrix of each chunk
  bool writes_state;         // somebody needs the state after the last chunk
  bool exact;                // U is the inputs' bfloat16, and needs no low part

  explicit PlanBf16(const CallBf16& c) {
    causal = c.causal;
    features = features_of(c.d_dot);
    narrow = round_up(c.d_value, 16);
    wide = round_up(c.d_value + (c.normalize_output ? 1 : 0), 16);
    const bool single = c.sources <= longest_chunk;
    chunk = single ? c.sources : longest_chunk;
    chunks = single ? 1 : (c.sources + chunk - 1) / chunk;
    const bool given = c.W != nullptr;
    const idx gram = c.targets * c.sources * (2 * c.d_dot + 3 * c.d_value);
    const idx state = (4 * c.targets + (given ? 0 : 2 * c.sources)) * c.d_dot * c.d_value;
    reads_state = !causal && (!single || gram > state);
    writes_state = given || reads_state;
    exact = c.rule == Rule::sum && !c.normalize_features;
  }
};

// c += A b over `count` columns of A and rows of b, 4 rows at a time; `N` vectors of columns. See triangle_solve.
template <int N>
FWP_INLINE void solve_columns(idx count, const float* A, idx lda, const float* rate, const float* Y, float* U, idx ld) {
  for (idx i = 0; i < count; i += 4) {
    __m512 c[4][N];
    unroll<4 * N>([&](auto l) FWP_INLINE_LAMBDA {
      c[l / N][l % N] = Y ? _mm512_loadu_ps(Y + (i + l / N) * ld + 16 * (l % N)) : _mm512_setzero_ps();
    });
    const float* a = A + i * lda;
    for (idx k = 0; k < i; ++k) {
      __m512 u[N];
      unroll<N>([&](auto n) FWP_INLINE_LAMBDA { u[n] = _mm512_loadu_ps(U + k * ld + 16 * n); });
      unroll<4 * N>([&](auto l) FWP_INLINE_LAMBDA {
        c[l / N][l % N] = _mm512_fmadd_ps(_mm512_set1_ps(a[l / N * lda + k]), u[l % N], c[l / N][l % N]);
      });
    }
    unroll<4>([&](auto k) FWP_INLINE_LAMBDA {
      float* row = U + (i + k) * ld;
      __m512 u[N];
      unroll<N>([&](auto n) FWP_INLINE_LAMBDA {
        u[n] = _mm512_fnmadd_ps(_mm512_set1_ps(rate[i + k]), c[k][n], _mm512_loadu_ps(row + 16 * n));
        _mm512_storeu_ps(row + 16 * n, u[n]);
      });
      unroll<(3 - k) * N>([&](auto l) FWP_INLINE_LAMBDA {
        constexpr int r = k + 1 + l / N, n = l % N;
        c[r][n] = _mm512_fmadd_ps(_mm512_set1_ps(a[r * lda + i + k]), u[n], c[r][n]);
      });
    });
  }
}

struct HeadBf16 {
  const CallBf16& c;
  const PlanBf16 plan;
  const MapScratch map;
  idx b = 0, h = 0;
  const idx tokens;  // of a chunk, in whole blocks

  SideBf16 q, k;     // a block's; k.scale: of the chunk so far
  float* key_scale;
  Bf16 *keys, *keys_low;                  // right factor K^T
  Bf16 *left_high, *left_low;             // left factor: rows of P, of K K^T, of K^T
  Bf16 *U_high, *U_low, *W_high, *W_low;  // right factors
  float *gram;                            // of a block with the chunk so far
  float *U, *Y, *N, *W;                   // U, Y, N of a block
  float *beta, *rate;
  idx ldg, ldl;                           // rows of gram and of left factors over tokens
  bool has_W = false, finite = true;

  HeadBf16(const CallBf16& call, Arena<float>& arena)
      : c(call), plan(call), map(call, arena), tokens(round_up(plan.chunk, block)) {
    const idx features = plan.features, wide = plan.wide;
    const bool state = plan.writes_state || plan.chunks > 1 || c.initial_W;
    const auto narrow = [&](idx count) { return reinterpret_cast<Bf16*>(arena.take(count / 2)); };
    ldg = tokens + 16;
    ldl = tokens + 32;
    q.phi = k.phi = narrow(block * map.stride);
    q.phi_low = k.phi_low = narrow(block * map.stride);
    q.split = with_map(c.map, [](auto map) { return PhiBf16<map.value>::split_queries; });
    k.split = with_map(c.map, [](auto map) { return PhiBf16<map.value>::split_keys; });
    q.scale = arena.take(block);
    key_scale = arena.take(tokens);
    q.there = k.there = reinterpret_cast<bool*>(arena.take(block));
    keys = narrow(tokens / 16 * panel_of(features));
    keys_low = narrow(k.split ? tokens / 16 * panel_of(features) : 0);
    left_high = narrow(block * ldl);
    left_low = narrow(block * ldl);
    U_high = narrow(wide / 16 * panel_of(tokens));
    U_low = narrow(wide / 16 * panel_of(tokens));
    W_high = narrow(state ? wide / 16 * panel_of(features) : 0);
    W_low = narrow(state ? wide / 16 * panel_of(features) : 0);
    gram = arena.take(block * ldg);
    U = arena.take(block * wide);
    Y = arena.take(block * wide);
    N = arena.take(block * wide);
    W = arena.take(state ? features * wide : 0);
    beta = arena.take(block);
    rate = arena.take(block);
  }

  Right transposed_keys() const { return {keys, k.split ? keys_low : nullptr, panel_of(plan.features)}; }
  Right written() const { return {U_high, plan.exact ? nullptr : U_low, panel_of(tokens)}; }
  Right state() const { return {W_high, W_low, panel_of(plan.features)}; }
  Left left() const { return {left_high, left_low, ldl}; }

  // Prefetches tokens t0 .. t0 + count of the next head: their rows are short and far apart, and would come too late.
  template <class T> void prefetch_next(const Rows<T>& rows, idx t0, idx count, idx columns) const {
    const idx next_h = h + 1 < c.heads ? h + 1 : 0, next_b = next_h ? b : b + 1;
    if (next_b >= c.batch) return;
    for (idx t = t0; t < t0 + count; ++t)
      for (idx j = 0; j < columns; j += 32) __builtin_prefetch(rows.at(next_b, t, next_h) + j);
  }

  // ---- state ----

  void start() {
    has_W = c.initial_W != nullptr;
    if (!has_W) return;
    const idx wide = plan.wide, first = (b * c.heads + h) * c.d_dot;
    for (idx i = 0; i < plan.features; ++i) {
      const idx count = i < c.d_dot ? c.d_value : 0;
      for (idx j = 0; j < wide; j += 16)
        _mm512_storeu_ps(W + i * wide + j,
                         _mm512_maskz_loadu_ps(first_lanes(count - j), c.initial_W + (first + i) * c.d_value + j));
      if (c.normalize_output && i < c.d_dot) W[i * wide + c.d_value] = c.initial_z[first + i];
    }
    split_state();
  }
  void split_state() {
    __m512i largest{};
    for (idx i = 0; i < plan.features; i += 2)
      split_pairs(W + i * plan.wide, W + (i + 1) * plan.wide, plan.wide, W_high + panel_of(i), W_low + panel_of(i),
                  state().panel, largest);
  }
  void finish() const {
    const idx first = (b * c.heads + h) * c.d_dot;
    for (idx i = 0; i < c.d_dot; ++i) {
      const float* row = W + i * plan.wide;
      for (idx j = 0; j < c.d_value; j += 16)
        _mm512_mask_storeu_ps(c.W + (first + i) * c.d_value + j, first_lanes(c.d_value - j), _mm512_loadu_ps(row + j));
      if (c.z) c.z[first + i] = row[c.d_value];
    }
  }
  // W <- W + K^T U for a chunk of `count` tokens; `read`: this call will read W again.
  void write(idx count, bool read) {
    const idx padded = round_up(count, 16);
    for (idx i = 0; i < plan.features; i += block) {
      features_of_panels(keys, plan.features, i, padded, left_high, ldl);
      if (k.split) features_of_panels(keys_low, plan.features, i, padded, left_low, ldl);
      tile_product(block, plan.wide, round_up(count, block), {left_high, k.split ? left_low : nullptr, ldl}, written(),
                   W + i * plan.wide, plan.wide, has_W);
    }
    has_W = true;
    if (read) split_state();
  }

  // ---- writing ----

  // Row i of U: `by` times the values of token t.
  void load_values(idx i, idx t, float by) const {
    const Bf16* from = c.v.at(b, t, h);
    for (idx j = 0; j < plan.wide; j += 16)
      _mm512_storeu_ps(U + i * plan.wide + j, _mm512_mul_ps(load_wide(from + j, c.d_value - j), _mm512_set1_ps(by)));
  }
  void clear_values(idx i) const {
    for (idx j = 0; j < plan.wide; j += 16) _mm512_storeu_ps(U + i * plan.wide + j, _mm512_setzero_ps());
  }

  // Turns beta V in U into the delta rule's U of the block; `first` is the block's position in the chunk.
  void solve(idx first, idx count) {
    const idx wide = plan.wide, rows = round_up(count, 16);
    tile_product(rows, first + rows, plan.features, k.left(map), transposed_keys(), gram, ldg, false, first);
    const bool has_Y = has_W || first > 0;
    if (has_W) tile_product(rows, wide, plan.features, k.left(map), state(), Y, wide, false);
    for (idx i = 0; i < rows; i += 16) {
      const __m512 scale = _mm512_loadu_ps(k.scale + i);
      _mm512_storeu_ps(rate + i, _mm512_mul_ps(_mm512_loadu_ps(beta + i), _mm512_mul_ps(scale, scale)));
    }
    for (idx i = 0; c.normalize_output && i < count; ++i) {
      __m512 sum = _mm512_setzero_ps();
      for (idx j = 0; j < first + i; j += 16) {
        const __mmask16 earlier = first_lanes(first + i - j);
        sum = _mm512_fmadd_ps(_mm512_maskz_loadu_ps(earlier, gram + i * ldg + j),
                              _mm512_maskz_loadu_ps(earlier, key_scale + j), sum);
      }
      const float z = _mm512_reduce_add_ps(sum) + (has_W ? Y[i * wide + c.d_value] : 0.0f);
      const float seen = k.scale[i] * z + c.eps;
      rate[i] = seen == 0 ? 0.0f : rate[i] / seen;
    }
    if (first > 0) {
      for (idx i = 0; i < rows; ++i) split_row(gram + i * ldg, first, first, left_high + i * ldl, left_low + i * ldl);
      tile_product(rows, wide, first, left(), written(), Y, wide, has_W);
    }
    const float *A = gram + first, *r = has_Y ? Y : nullptr;
    idx j = 0;
    for (; j + 64 <= plan.narrow; j += 64) solve_columns<4>(count, A, ldg, rate, r ? r + j : r, U + j, wide);
    for (; j < plan.narrow; j += 16) solve_columns<1>(count, A, ldg, rate, r ? r + j : r, U + j, wide);
  }

  // Loads keys and computes U of tokens t0 .. t0 + count, `first` in their chunk.
  void load_block(idx t0, idx first, idx count) {
    const idx wide = plan.wide;
    const bool delta = c.rule == Rule::delta;
    k.scale = key_scale + first;
    prefetch_next(c.k, t0, count, c.d_key);
    prefetch_next(c.v, t0, count, c.d_value);
    load_side(c, c.k, c.key_padding_mask, b, h, t0, count, map, k);
    const idx panels = first / 16 * panel_of(plan.features), rows = round_up(count, 16);
    transpose_to_panels(k.phi, map.stride, rows, plan.features, keys + panels);
    if (k.split) transpose_to_panels(k.phi_low, map.stride, rows, plan.features, keys_low + panels);
    for (idx i = 0; i < block; ++i) {
      const bool there = i < count && k.there[i];
      beta[i] = there && delta ? *c.beta.at(b, t0 + i, h) : 1.0f;
      if (there) load_values(i, t0 + i, beta[i] * k.scale[i]);
      else clear_values(i);
      if (!there) beta[i] = 0;
    }
    if (delta) {
      solve(first, count);
      for (idx i = count; i < block; ++i) clear_values(i);
    }
    if (c.normalize_output)
      for (idx i = 0; i < count; ++i) U[i * wide + c.d_value] = k.scale[i];
    __m512i largest{};
    for (idx i = 0; i < 16; ++i) {
      const idx at = panel_of(first) + 32 * i;
      split_pairs(U + i * wide, U + (i + 16) * wide, wide, U_high + at, U_low + at, written().panel, largest);
    }
    finite = is_finite(largest);
  }

  // ---- reading ----

  // N (+)= P U: queries of a block at `first` of the chunk that has `sources` tokens so far.
  void read_gram(idx first, idx count, idx sources, bool add) {
    const idx rows = round_up(count, 16), wide = plan.wide, columns = round_up(sources, 16);
    tile_product(rows, columns, plan.features, q.left(map), transposed_keys(), gram, ldg, false,
                 plan.causal ? first : -1);
    const idx inner = round_up(sources, block);
    for (idx i = 0; i < rows; ++i)
      split_row(gram + i * ldg, inner, plan.causal ? first + i + 1 : sources, left_high + i * ldl, left_low + i * ldl);
    if (!plan.causal || finite) {
      tile_product(rows, wide, inner, left(), written(), N, wide, add);
      return;
    }
    // The zeros above the diagonal would carry a NaN to earlier positions.
    if (first > 0) tile_product(rows, wide, first, left(), written(), N, wide, add);
    const View<float> A{gram + first, ldg, 1};
    if (first > 0 || add) triangle_product<true>(count, wide, A, U, wide, N, wide);
    else triangle_product<false>(count, wide, A, U, wide, N, wide);
  }

  // Reads for tokens t0 .. t0 + count: from W where there is one, and from the chunk where it has `sources` tokens.
  void read_block(idx t0, idx first, idx count, idx sources) {
    const Rows<const bool> nothing_padded;
    prefetch_next(c.q, t0, count, c.d_key);
    prefetch_next(c.out, t0, count, c.d_value);
    load_side(c, c.q, nothing_padded, b, h, t0, count, map, q);
    if (has_W) tile_product(round_up(count, 16), plan.wide, plan.features, q.left(map), state(), N, plan.wide, false);
    if (sources > 0) read_gram(first, count, sources, has_W);
    for (idx i = 0; i < count; ++i) {
      const float* row = N + i * plan.wide;
      const float d = c.normalize_output ? q.scale[i] * row[c.d_value] + c.eps : 1.0f;
      const __m512 by = _mm512_set1_ps(d == 0 ? 0.0f : q.scale[i] / d);
      const __mmask16 wanted = d == 0 ? 0 : 0xffff;  // whatever the row holds
      Bf16* to = c.out.at(b, t0 + i, h);
      for (idx j = 0; j < c.d_value; j += 32) {
        const __m512 x = _mm512_maskz_mul_ps(wanted, _mm512_loadu_ps(row + j), by);
        const __m512 y = j + 16 < plan.wide ? _mm512_maskz_mul_ps(wanted, _mm512_loadu_ps(row + j + 16), by) : x;
        store_narrow<false>(to + j, to, x, y, c.d_value - j);
      }
    }
  }

  template <class F> static void for_blocks(idx from, idx to, F f) {
    for (idx t0 = from; t0 < to; t0 += block) f(t0, to - t0 < block ? to - t0 : block);
  }

  void forward(idx batch_row, idx head) {
    b = batch_row;
    h = head;
    start();
    for (idx start = 0; start < c.sources; start += plan.chunk) {
      const idx end = start + plan.chunk < c.sources ? start + plan.chunk : c.sources;
      const bool last = end == c.sources;
      for_blocks(start, end, [&](idx t0, idx count) {
        load_block(t0, t0 - start, count);
        if (plan.causal) read_block(t0, t0 - start, count, t0 - start + count);
      });
      if (!plan.causal && !plan.reads_state)
        for_blocks(0, c.targets, [&](idx t0, idx count) { read_block(t0, 0, count, end - start); });
      if (plan.writes_state || !last) write(end - start, plan.reads_state || !last);
    }
    if (plan.reads_state) for_blocks(0, c.targets, [&](idx t0, idx count) { read_block(t0, 0, count, 0); });
    if (c.W) finish();
  }
};

inline bool serves(const CallBf16& c) {
  const bool has_map = with_map(c.map, [](auto map) { return PhiBf16<map.value>::served; });
  return has_map && (c.rule == Rule::sum || c.rule == Rule::delta) && c.targets > 0 && c.sources > 0 && c.d_value > 0 &&
         c.d_dot > 0;
}
inline std::size_t forward_scratch(const CallBf16& c) {
  Arena<float> arena{nullptr};
  HeadBf16(c, arena);
  return arena.used;
}
inline void forward(const CallBf16& c, idx first, idx last, float* scratch) {
  Arena<float> arena{scratch};
  HeadBf16 head(c, arena);
  configure_tiles();
  head.map.prepare(c);
  for (idx i = first; i < last; ++i) head.forward(i / c.heads, i % c.heads);
  _tile_release();
}
constexpr KernelsBf16 kernels_bf16{serves, forward_scratch, forward};
