// Attention through slots of one head. With K and V the n positions that are no pads, and u = min(m, n) slots,
//
//     P = softmax over slots of (W K^T + c own),  z = P 1,  A = softmax over slots of (KB Q^T / sqrt(d) + log z)
//     KB = P K / z,  VB = P V / z,  out = A^T VB
//
// where own is 1 for the slot of each position. Slots are rows of P (u x n) and A (u x targets), so softmax takes whole vectors
// of positions. The backward computes all of them again. Included by instruction_set.h.

template <class T> struct SlotMemory {
  typedef SlotsCall<T> Call;
  static constexpr idx W = width<T>;
  static constexpr T smallest = T(1e-20), lowest = T(-1e30);  // what an empty slot counts as, and its logarithm

  static idx whole(idx x) { return round_up(x < 1 ? 1 : x, W); }
  static std::size_t scratch(const Call& c) {
    const idx D = whole(c.d), S = whole(c.sources), L = whole(c.targets);
    return 6 * S * D + 5 * L * D + 5 * c.used * D + 2 * c.used * (S + L) + 4 * c.used + c.used * W;
  }

  const Call& c;
  const idx b, h, d, D, S, L;  // D, S, L: width, sources and targets in whole vectors
  idx n = 0, u = 0;
  T *K, *KT, *V, *VT, *dK, *dV, *Q, *QT, *O, *dO, *dOT, *KB, *VB, *dKB, *dVB, *weight, *P, *dP, *A, *dA, *z, *held, *dz;

  SlotMemory(const Call& c, idx b, idx h, T* own)
      : c(c), b(b), h(h), d(c.d), D(whole(c.d)), S(whole(c.sources)), L(whole(c.targets)) {
    const auto take = [&](idx count) {
      T* const found = own;
      own += count;
      return found;
    };
    for (T** x : {&K, &KT, &V, &VT, &dK, &dV}) *x = take(S * D);
    for (T** x : {&Q, &QT, &O, &dO, &dOT}) *x = take(L * D);
    for (T** x : {&KB, &VB, &dKB, &dVB, &weight}) *x = take(c.used * D);
    for (T** x : {&P, &dP}) *x = take(c.used * S);
    for (T** x : {&A, &dA}) *x = take(c.used * L);
    for (T** x : {&z, &held, &dz}) *x = take(c.used);
    for (idx j = 0; j < c.sources; ++j) n += !is_pad(j);
    u = n < c.slots ? n : c.slots;
  }

  bool is_pad(idx j) const { return c.key_padding_mask && *c.key_padding_mask.at(b, j, 0); }
  // The slot of the p-th position that is no pad.
  idx slot(idx p) const { return p * c.slots / (n > c.slots ? n : c.slots); }
  // f(p, j) for the p-th position that is no pad, which is number j of all.
  template <class F> void for_tokens(F f) const {
    for (idx j = 0, p = 0; j < c.sources; ++j)
      if (!is_pad(j)) f(p++, j);
  }

  static void zero_rows(T* rows, idx first, idx end, idx D) {
    for (idx i = first * D; i < end * D; ++i) rows[i] = 0;
  }
  // to (D x count) = rows (count x D) transposed; both in whole vectors.
  static void transpose(const T* rows, idx count, idx D, T* to) {
    for (idx i = 0; i < count; i += W)
      for (idx j = 0; j < D; j += W) transpose_block(rows + i * D + j, D, to + j * count + i, count);
  }
  // x -> softmax(x) over the `rows` of each column, which become 0 from column `end` on.
  static void softmax(T* x, idx rows, idx columns, idx end) {
    for (idx t = 0; t < columns; t += W) {
      Vec<T> most = load(x + t), total{};
      for (idx s = 1; s < rows; ++s) {
        const Vec<T> y = load(x + s * columns + t);
        most = y > most ? y : most;
      }
      for (idx s = 0; s < rows; ++s) {
        const Vec<T> e = exponential<T>(load(x + s * columns + t) - most);
        store<T>(x + s * columns + t, e);
        total += e;
      }
      Vec<T> share = splat(T(1)) / total;
      for (int i = 0; i < W; ++i) share[i] = t + i < end ? share[i] : T(0);
      for (idx s = 0; s < rows; ++s) store<T>(x + s * columns + t, load(x + s * columns + t) * share);
    }
  }
  // dx -> the gradient of x, from that of y = softmax(x).
  static void softmax_gradient(const T* y, T* dx, idx rows, idx columns) {
    for (idx t = 0; t < columns; t += W) {
      Vec<T> along{};
      for (idx s = 0; s < rows; ++s) along += load(y + s * columns + t) * load(dx + s * columns + t);
      for (idx s = 0; s < rows; ++s) {
        const idx at = s * columns + t;
        store<T>(dx + at, load(y + at) * (load(dx + at) - along));
      }
    }
  }
  static void multiply(T* x, T factor, idx count) {
    const Vec<T> f = splat(factor);
    for (idx i = 0; i < count; i += W) store<T>(x + i, load(x + i) * f);
  }

  void write() {
    for_tokens([&](idx p, idx j) {
      fetch_row(K + p * D, c.k.at(b, j, h), d, D);
      fetch_row(V + p * D, c.v.at(b, j, h), d, D);
    });
    zero_rows(K, n, S, D);
    zero_rows(V, n, S, D);
    transpose(K, S, D, KT);
    product<false>(u, S, d, View<T>{c.weight + h * c.slots * d, d, 1}, KT, S, P, S);
    for (idx p = 0; p < n; ++p) P[slot(p) * S + p] += c.sharpness[h];
    softmax(P, u, S, n);
    product<false>(u, D, n, View<T>{P, S, 1}, K, D, KB, D);
    product<false>(u, D, n, View<T>{P, S, 1}, V, D, VB, D);
    for (idx s = 0; s < u; ++s) {
      z[s] = sum(P + s * S, S);
      held[s] = z[s] > smallest ? z[s] : smallest;
      multiply(KB + s * D, 1 / held[s], D);
      multiply(VB + s * D, 1 / held[s], D);
    }
  }
  void weigh() {
    for (idx t = 0; t < c.targets; ++t) fetch_row(Q + t * D, c.q.at(b, t, h), d, D);
    zero_rows(Q, c.targets, L, D);
    transpose(Q, L, D, QT);
    product<false>(u, L, d, View<T>{KB, D, 1}, QT, L, A, L);
    for (idx s = 0; s < u; ++s) {
      const Vec<T> logarithm = splat(z[s] > 0 ? T(__builtin_log(double(held[s]))) : lowest), scale = splat(c.scale);
      for (idx t = 0; t < L; t += W) store<T>(A + s * L + t, load(A + s * L + t) * scale + logarithm);
    }
    softmax(A, u, L, L);
  }

  void read() {
    if (n) {
      write();
      weigh();
      product<false>(c.targets, D, u, View<T>{A, 1, L}, VB, D, O, D);
    } else {
      zero_rows(O, 0, c.targets, D);
    }
    for (idx t = 0; t < c.targets; ++t) put_row(c.out.at(b, t, h), O + t * D, d);
  }

  void differentiate() {
    if (n) {
      write();
      weigh();
      transpose(V, S, D, VT);
      for (idx t = 0; t < c.targets; ++t) fetch_row(dO + t * D, c.grad_out.at(b, t, h), d, D);
      zero_rows(dO, c.targets, L, D);
      transpose(dO, L, D, dOT);
      product<false>(u, L, d, View<T>{VB, D, 1}, dOT, L, dA, L);
      product<false>(u, D, c.targets, View<T>{A, L, 1}, dO, D, dVB, D);
      softmax_gradient(A, dA, u, L);
      product<false>(c.targets, D, u, View<T>{dA, 1, L}, KB, D, O, D);
      product<false>(u, D, c.targets, View<T>{dA, L, 1}, Q, D, dKB, D);
      multiply(O, c.scale, c.targets * D);
      multiply(dKB, c.scale, u * D);
      for (idx s = 0; s < u; ++s) {
        const T share = 1 / held[s], along = dot(dKB + s * D, KB + s * D, D) + dot(dVB + s * D, VB + s * D, D);
        dz[s] = z[s] > smallest ? (sum(dA + s * L, L) - along) * share : T(0);
        multiply(dKB + s * D, share, D);
        multiply(dVB + s * D, share, D);
      }
      product<false>(u, S, d, View<T>{dKB, D, 1}, KT, S, dP, S);
      product<true>(u, S, d, View<T>{dVB, D, 1}, VT, S, dP, S);
      for (idx s = 0; s < u; ++s)
        for (idx p = 0; p < S; p += W) store<T>(dP + s * S + p, load(dP + s * S + p) + splat(dz[s]));
      softmax_gradient(P, dP, u, S);
      for (idx s = 0; s < u; ++s) fetch_row(weight + s * D, c.weight + (h * c.slots + s) * d, d, D);
      product<false>(n, D, u, View<T>{P, 1, S}, dVB, D, dV, D);
      product<false>(n, D, u, View<T>{P, 1, S}, dKB, D, dK, D);
      product<true>(n, D, u, View<T>{dP, 1, S}, weight, D, dK, D);
      product<false>(u, D, n, View<T>{dP, S, 1}, K, D, dKB, D);  // of the weight
    } else {
      zero_rows(O, 0, c.targets, D);
    }
    for (idx t = 0; t < c.targets; ++t) put_row(c.grad_q.at(b, t, h), O + t * D, d);
    T dsharpness = 0, *to = c.grad_weight + (b * c.heads + h) * c.used * d;
    for (idx p = 0; p < n; ++p) dsharpness += dP[slot(p) * S + p];
    c.grad_sharpness[b * c.heads + h] = dsharpness;
    for (idx s = 0; s < c.used; ++s)
      for (idx i = 0; i < d; ++i) to[s * d + i] = s < u ? dKB[s * D + i] : T(0);
    for (idx j = 0, p = 0; j < c.sources; ++j) {
      T *dk = c.grad_k.at(b, j, h), *dv = c.grad_v.at(b, j, h);
      if (is_pad(j)) {
        for (idx i = 0; i < d; ++i) dk[i] = dv[i] = 0;
        continue;
      }
      put_row(dk, dK + p * D, d);
      put_row(dv, dV + p * D, d);
      ++p;
    }
  }

  static void forward(const Call& c, idx b, idx h, T* own) { SlotMemory(c, b, h, own).read(); }
  static void backward(const Call& c, idx b, idx h, T* own) { SlotMemory(c, b, h, own).differentiate(); }
};

template <class T>
constexpr SlotsKernels<T> slots_kernels{SlotMemory<T>::scratch, SlotMemory<T>::forward, SlotMemory<T>::backward};
