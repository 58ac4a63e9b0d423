// The recurrences of the Delta RNN and of the Recurrent Delta Net for one head; the second stands below. The first: at each
// position t that is no pad
//
//     u = beta (v - R k),  R <- R + u k^T,  y <- z + R f,  f = softmax of the y before
//
// Row i of R in memory belongs to key entry i, as in W. The forward keeps u of every position and the last R. The backward
// goes from the last position to the first and takes u k^T away again, so it needs one R, and G, the gradient of R.
// Rows are padded with zeros to whole vectors in scratch. Included by instruction_set.h.

template <class T> struct Recurrent {
  typedef RecurrenceCall<T> Call;
  static constexpr idx W = width<T>;

  static idx padded(const Call& c) { return round_up(c.d, W); }
  // R and G, of whole blocks of rows, and at most 24 vectors, of which some hold parts.
  static std::size_t scratch(const Call& c) { return 2 * padded(c) * padded(c) + 24 * padded(c) + 8 * W; }

  static FWP_INLINE void fetch(T* to, const T* from, idx d, idx D) {
    for (idx i = 0; i < d; ++i) to[i] = from ? from[i] : T(0);
    for (idx i = d; i < D; ++i) to[i] = 0;
  }
  static void fetch_matrix(T* to, const T* from, idx d, idx D) {
    for (idx i = 0; i < D; ++i) fetch(to + i * D, from && i < d ? from + i * d : nullptr, d, D);
  }
  static void put_matrix(T* to, const T* from, idx d, idx D) {
    for (idx i = 0; i < d; ++i)
      for (idx j = 0; j < d; ++j) to[i * d + j] = from[i * D + j];
  }

  static FWP_INLINE void softmax(T* f, const T* y, idx d, idx D) {
    T most = y[0];
    for (idx i = 1; i < d; ++i) most = y[i] > most ? y[i] : most;
    const Vec<T> shift = splat(most);
    for (idx j = 0; j < D; j += W) store<T>(f + j, exponential<T>(load(y + j) - shift));
    for (idx i = d; i < D; ++i) f[i] = 0;
    const Vec<T> share = splat(T(1) / sum(f, D));
    for (idx j = 0; j < D; j += W) store<T>(f + j, load(f + j) * share);
  }

  static bool is_pad(const Call& c, idx b, idx t) { return c.key_padding_mask && *c.key_padding_mask.at(b, t, 0); }

  // y = sum_i x_i row i.
  static FWP_INLINE void read(const T* R, const T* x, T* y, idx d, idx D) {
    for_groups<T>(D, [&](idx j, auto C) FWP_INLINE_LAMBDA {
      Vec<T> even[C.value]{}, odd[C.value]{};
      idx i = 0;
      for (; i + 2 <= d; i += 2) {
        const Vec<T> a = splat(x[i]), b = splat(x[i + 1]);
        unroll<C.value>([&](auto c) FWP_INLINE_LAMBDA {
          even[c] += a * load(R + i * D + j + c * W);
          odd[c] += b * load(R + (i + 1) * D + j + c * W);
        });
      }
      if (i < d) {
        const Vec<T> a = splat(x[i]);
        unroll<C.value>([&](auto c) FWP_INLINE_LAMBDA { even[c] += a * load(R + i * D + j + c * W); });
      }
      unroll<C.value>([&](auto c) FWP_INLINE_LAMBDA { store<T>(y + j + c * W, even[c] + odd[c]); });
    });
  }

  // row i += k_i u, and y = sum_i f_i row i.
  static FWP_INLINE void write_and_read(T* R, const T* k, const T* u, const T* f, T* y, idx d, idx D) {
    for_groups<T>(D, [&](idx j, auto C) FWP_INLINE_LAMBDA {
      Vec<T> total[C.value]{}, change[C.value];
      unroll<C.value>([&](auto c) FWP_INLINE_LAMBDA { change[c] = load(u + j + c * W); });
      for (idx i = 0; i < d; ++i) {
        const Vec<T> a = splat(k[i]), b = splat(f[i]);
        unroll<C.value>([&](auto c) FWP_INLINE_LAMBDA {
          T* at = R + i * D + j + c * W;
          const Vec<T> row = load(at) + a * change[c];
          store<T>(at, row);
          total[c] += b * row;
        });
      }
      unroll<C.value>([&](auto c) FWP_INLINE_LAMBDA { store<T>(y + j + c * W, total[c]); });
    });
  }

  static void forward(const Call& c, idx b, idx h, T* own) {
    const idx d = c.d, D = padded(c), head = b * c.heads + h;
    T *R = own, *y = R + D * D, *f = y + D, *k = f + D, *u = k + D, *next = u + D;
    fetch_matrix(R, c.initial_R ? c.initial_R + head * d * d : nullptr, d, D);
    fetch(y, c.initial_y ? c.initial_y + head * d : nullptr, d, D);
    for (idx t = 0; t < c.length; ++t) {
      const bool pad = is_pad(c, b, t);
      const T *z = c.z.at(b, t, h), *v = c.v.at(b, t, h);
      T *out = c.out.at(b, t, h), *written = c.written.at(b, t, h);
      softmax(f, y, d, D);
      if (pad) {
        read(R, f, next, d, D);
        for (idx i = 0; i < d; ++i) written[i] = 0;
      } else {
        fetch(k, c.k.at(b, t, h), d, D);
        read(R, k, u, d, D);
        const T beta = *c.beta.at(b, t, h);
        for (idx i = 0; i < d; ++i) written[i] = u[i] = beta * (v[i] - u[i]);
        write_and_read(R, k, u, f, next, d, D);
      }
      for (idx i = 0; i < d; ++i) out[i] = z[i] + next[i];
      if (!pad)
        for (idx i = 0; i < d; ++i) y[i] = out[i];
    }
    put_matrix(c.R + head * d * d, R, d, D);
    for (idx i = 0; i < d; ++i) c.y[head * d + i] = y[i];
  }

  // Adds to[i + row] += (the sum over the lanes of) rows[row], for W rows.
  static FWP_INLINE void add_sums(T* to, Vec<T>* rows) { store<T>(to, load(to) + sum_of_rows<T>(rows)); }

  // With R after the write: df_i = R_i.e, G_i += f_i e; then the write is undone, R_i -= k_i u; g = sum_i k_i G_i and
  // old = sum_i k_i R_i. df starts as 0.
  static FWP_INLINE void undo(T* R, T* G, const T* e, const T* f, const T* k, const T* u, T* df, T* g, T* old, idx D) {
    for_groups<T>(D, [&](idx j, auto C) FWP_INLINE_LAMBDA {
      Vec<T> gradient[C.value], change[C.value], g_sum[C.value]{}, old_sum[C.value]{};
      unroll<C.value>([&](auto c) FWP_INLINE_LAMBDA {
        gradient[c] = load(e + j + c * W);
        change[c] = load(u + j + c * W);
      });
      for (idx i = 0; i < D; i += W) {
        Vec<T> sums[W];
        for (idx r = 0; r < W; ++r) {
          const Vec<T> a = splat(k[i + r]), b = splat(f[i + r]);
          Vec<T> total{};
          unroll<C.value>([&](auto c) FWP_INLINE_LAMBDA {
            T *at = R + (i + r) * D + j + c * W, *grad_at = G + (i + r) * D + j + c * W;
            const Vec<T> row = load(at);
            total += row * gradient[c];
            const Vec<T> before = row - a * change[c], grad = load(grad_at) + b * gradient[c];
            store<T>(at, before);
            store<T>(grad_at, grad);
            g_sum[c] += a * grad;
            old_sum[c] += a * before;
          });
          sums[r] = total;
        }
        add_sums(df + i, sums);
      }
      unroll<C.value>([&](auto c) FWP_INLINE_LAMBDA {
        store<T>(g + j + c * W, g_sum[c]);
        store<T>(old + j + c * W, old_sum[c]);
      });
    });
  }

  // dk_i = G_i.u - R_i.s and G_i -= k_i s, with s = beta g. dk starts as 0.
  static FWP_INLINE void grad_of_key(const T* R, T* G, const T* k, const T* u, const T* s, T* dk, idx D) {
    for_groups<T>(D, [&](idx j, auto C) FWP_INLINE_LAMBDA {
      Vec<T> change[C.value], scaled[C.value];
      unroll<C.value>([&](auto c) FWP_INLINE_LAMBDA {
        change[c] = load(u + j + c * W);
        scaled[c] = load(s + j + c * W);
      });
      for (idx i = 0; i < D; i += W) {
        Vec<T> sums[W];
        for (idx r = 0; r < W; ++r) {
          const Vec<T> a = splat(k[i + r]);
          Vec<T> total{};
          unroll<C.value>([&](auto c) FWP_INLINE_LAMBDA {
            T* grad_at = G + (i + r) * D + j + c * W;
            const Vec<T> grad = load(grad_at);
            total += grad * change[c] - load(R + (i + r) * D + j + c * W) * scaled[c];
            store<T>(grad_at, grad - a * scaled[c]);
          });
          sums[r] = total;
        }
        add_sums(dk + i, sums);
      }
    });
  }

  // At a pad: df_i = R_i.e and G_i += f_i e. df starts as 0.
  static void only_read(const T* R, T* G, const T* e, const T* f, T* df, idx d, idx D) {
    for (idx i = 0; i < d; ++i) {
      df[i] += dot(R + i * D, e, D);
      for (idx j = 0; j < D; j += W) store<T>(G + i * D + j, load(G + i * D + j) + splat(f[i]) * load(e + j));
    }
  }

  static void backward(const Call& c, idx b, idx h, T* own) {
    const idx d = c.d, D = padded(c), head = b * c.heads + h;
    T *R = own, *G = R + D * D, *y = G + D * D, *f = y + D, *k = f + D, *u = k + D, *e = u + D, *df = e + D, *g = df + D;
    T *old = g + D, *dk = old + D, *s = dk + D, *carried = s + D;
    fetch_matrix(R, c.last_R + head * d * d, d, D);
    fetch_matrix(G, c.grad_R ? c.grad_R + head * d * d : nullptr, d, D);
    fetch(carried, c.grad_y ? c.grad_y + head * d : nullptr, d, D);
    for (idx t = c.length - 1; t >= 0; --t) {
      idx before = t - 1;
      while (before >= 0 && is_pad(c, b, before)) --before;
      const T* start = c.initial_y ? c.initial_y + head * d : nullptr;
      fetch(y, before < 0 ? start : c.found.at(b, before, h), d, D);
      softmax(f, y, d, D);
      fetch(e, c.grad_out.at(b, t, h), d, D);
      for (idx i = 0; i < D; ++i) df[i] = dk[i] = 0;
      T *dz = c.grad_z.at(b, t, h), *to_k = c.grad_k.at(b, t, h), *dv = c.grad_v.at(b, t, h);
      T* dbeta = c.grad_beta.at(b, t, h);
      const bool pad = is_pad(c, b, t);
      if (pad) {
        only_read(R, G, e, f, df, d, D);
        *dbeta = 0;
        for (idx i = 0; i < d; ++i) to_k[i] = dv[i] = 0;
      } else {
        for (idx j = 0; j < D; j += W) store<T>(e + j, load(e + j) + load(carried + j));
        fetch(k, c.k.at(b, t, h), d, D);
        fetch(u, c.found_written.at(b, t, h), d, D);
        undo(R, G, e, f, k, u, df, g, old, D);
        const T beta = *c.beta.at(b, t, h), *v = c.v.at(b, t, h);
        for (idx j = 0; j < D; j += W) store<T>(s + j, load(g + j) * splat(beta));
        grad_of_key(R, G, k, u, s, dk, D);
        T total = 0;
        for (idx i = 0; i < d; ++i) {
          to_k[i] = dk[i];
          dv[i] = s[i];
          total += g[i] * (v[i] - old[i]);
        }
        *dbeta = total;
      }
      for (idx i = 0; i < d; ++i) dz[i] = e[i];
      const T mean = dot(f, df, D);
      for (idx i = 0; i < d; ++i) carried[i] = (pad ? carried[i] : T(0)) + f[i] * (df[i] - mean);
    }
    put_matrix(c.grad_initial_R + head * d * d, G, d, D);
    for (idx i = 0; i < d; ++i) c.grad_initial_y[head * d + i] = carried[i];
  }
};

// The Recurrent Delta Net. With f = tanh of the y before, and A the slow weight of this head, at each position
//
//     [q', k', v, b'] = parts + f A,  q = phi(q'), k = phi(k'),  beta = sigmoid(b')
//     u = beta (v - R k),  R <- R + u k^T,  y <- R q
//
// where phi(x) = e / (sum of e + eps), e = exp(min(x, largest)). At a pad R is only read, and y stays for the next.
template <class T> struct RecurrentNet : Recurrent<T> {
  typedef Recurrent<T> Base;
  typedef RecurrenceCall<T> Call;
  static constexpr idx W = width<T>;

  static FWP_INLINE Vec<T> tanh(Vec<T> x) {
    const Vec<T> most = splat(T(15));  // Beyond, tanh is 1 in float and within 2e-13 of it in double, which then needs 20.
    const Vec<T> limit = sizeof(T) == 8 ? most + splat(T(5)) : most;
    Vec<T> a = x < Vec<T>{} ? -x : x;
    a = a > limit ? limit : a;
    const Vec<T> e = exponential<T>(splat(T(-2)) * a);
    // Near 0, 1 - e loses digits: the odd Taylor series there.
    const Vec<T> y = (splat(T(1)) - e) / (splat(T(1)) + e), s = a * a;
    Vec<T> series = splat(T(-1382.0 / 155925));
    series = series * s + splat(T(62.0 / 2835));
    series = series * s + splat(T(-17.0 / 315));
    series = series * s + splat(T(2.0 / 15));
    series = series * s + splat(T(-1.0 / 3));
    const Vec<T> near = a + a * s * series;
    const Vec<T> found = a < splat(T(sizeof(T) == 8 ? 0.01 : 0.1)) ? near : y;
    return x < Vec<T>{} ? -found : found;
  }
  static FWP_INLINE T sigmoid(T x) {
    const Vec<T> e = exponential<T>(splat(x < 0 ? x : -x));
    return x < 0 ? e[0] / (1 + e[0]) : 1 / (1 + e[0]);
  }
  static FWP_INLINE void phi(T* to, const T* x, const Call& c, idx D) {
    const Vec<T> largest = splat(c.largest);
    for (idx j = 0; j < D; j += W) {
      const Vec<T> y = load(x + j);
      store<T>(to + j, exponential<T>(y > largest ? largest : y));
    }
    for (idx i = c.d; i < D; ++i) to[i] = 0;
    const Vec<T> share = splat(T(1) / (sum(to, D) + c.eps));
    for (idx j = 0; j < D; j += W) store<T>(to + j, load(to + j) * share);
  }
  // dx = phi * (dphi - phi.dphi) where x is not clipped; into dphi.
  static FWP_INLINE void phi_back(T* dphi, const T* phi, const T* x, const Call& c, idx D) {
    const T mean = dot(phi, dphi, D);
    for (idx i = 0; i < c.d; ++i) dphi[i] = x[i] > c.largest ? T(0) : phi[i] * (dphi[i] - mean);
  }
  static FWP_INLINE void tanh_of(T* f, const T* y, idx D) {
    for (idx j = 0; j < D; j += W) store<T>(f + j, tanh(load(y + j)));
  }

  // Rows of A and parts in scratch begin at whole vectors: rows of 3 d + 1 numbers would straddle cache lines.
  static idx padded_parts(const Call& c) { return round_up(3 * c.d + 1, W); }
  static std::size_t scratch(const Call& c) {
    return Base::scratch(c) + (Base::padded(c) + 2) * padded_parts(c);
  }

  static T* fetch_weight(T* to, const Call& c, idx h, idx D, idx N) {
    const idx d = c.d, n = 3 * d + 1;
    for (idx i = 0; i < D; ++i) Base::fetch(to + i * N, i < d ? c.weight + (h * d + i) * n : nullptr, n, N);
    return to + D * N;
  }
  // x += f A, N numbers.
  static void feed(T* x, const T* f, const T* A, idx d, idx N) {
    for_groups<T, 8>(N, [&](idx j, auto C) FWP_INLINE_LAMBDA {
      Vec<T> total[C.value];
      unroll<C.value>([&](auto c) FWP_INLINE_LAMBDA { total[c] = load(x + j + c * W); });
      for (idx i = 0; i < d; ++i) {
        const Vec<T> a = splat(f[i]);
        unroll<C.value>([&](auto c) FWP_INLINE_LAMBDA { total[c] += a * load(A + i * N + j + c * W); });
      }
      unroll<C.value>([&](auto c) FWP_INLINE_LAMBDA { store<T>(x + j + c * W, total[c]); });
    });
  }
  // df_i = row i of A . dparts, D numbers.
  static void feed_back(T* df, const T* dparts, const T* A, idx D, idx N) {
    for (idx i = 0; i < D; i += W) {
      Vec<T> sums[W];
      for (idx r = 0; r < W; ++r) {
        const T* row = A + (i + r) * N;
        Vec<T> even{}, odd{};
        idx j = 0;
        for (; j + 2 * W <= N; j += 2 * W) {
          even += load(row + j) * load(dparts + j);
          odd += load(row + j + W) * load(dparts + j + W);
        }
        if (j < N) even += load(row + j) * load(dparts + j);
        sums[r] = even + odd;
      }
      store<T>(df + i, sum_of_rows<T>(sums));
    }
  }

  static void forward(const Call& c, idx b, idx h, T* own) {
    const idx d = c.d, D = Base::padded(c), n = 3 * d + 1, head = b * c.heads + h;
    const idx N = padded_parts(c);
    T *R = own, *y = R + D * D, *f = y + D, *q = f + D, *k = q + D, *x = k + D, *u = x + D, *next = u + D, *A = next + D;
    T* fed = fetch_weight(A, c, h, D, N);
    Base::fetch_matrix(R, c.initial_R ? c.initial_R + head * d * d : nullptr, d, D);
    Base::fetch(y, c.initial_y ? c.initial_y + head * d : nullptr, d, D);
    for (idx t = 0; t < c.length; ++t) {
      T *to = c.fed_parts.at(b, t, h), *out = c.out.at(b, t, h), *written = c.written.at(b, t, h);
      tanh_of(f, y, D);
      Base::fetch(fed, c.parts.at(b, t, h), n, N);
      feed(fed, f, A, d, N);
      for (idx i = 0; i < n; ++i) to[i] = fed[i];
      Base::fetch(x, fed, d, D);
      phi(q, x, c, D);
      if (Base::is_pad(c, b, t)) {
        Base::read(R, q, next, d, D);
        for (idx i = 0; i < d; ++i) {
          written[i] = 0;
          out[i] = next[i];
        }
        continue;
      }
      Base::fetch(x, fed + d, d, D);
      phi(k, x, c, D);
      Base::read(R, k, u, d, D);
      const T beta = sigmoid(fed[3 * d]);
      for (idx i = 0; i < d; ++i) written[i] = u[i] = beta * (fed[2 * d + i] - u[i]);
      Base::write_and_read(R, k, u, q, y, d, D);
      for (idx i = 0; i < d; ++i) out[i] = y[i];
    }
    Base::put_matrix(c.R + head * d * d, R, d, D);
    for (idx i = 0; i < d; ++i) c.y[head * d + i] = y[i];
  }

  static void backward(const Call& c, idx b, idx h, T* own) {
    const idx d = c.d, D = Base::padded(c), n = 3 * d + 1, head = b * c.heads + h;
    T *R = own, *G = R + D * D, *y = G + D * D, *f = y + D, *q = f + D, *k = q + D, *u = k + D, *e = u + D, *dq = e + D;
    T *g = dq + D, *old = g + D, *dk = old + D, *s = dk + D, *carried = s + D, *df = carried + D, *x = df + D, *A = x + D;
    const idx N = padded_parts(c);
    T* dparts = fetch_weight(A, c, h, D, N);
    for (idx i = 0; i < N; ++i) dparts[i] = 0;
    Base::fetch_matrix(R, c.last_R + head * d * d, d, D);
    Base::fetch_matrix(G, c.grad_R ? c.grad_R + head * d * d : nullptr, d, D);
    Base::fetch(carried, c.grad_y ? c.grad_y + head * d : nullptr, d, D);
    for (idx t = c.length - 1; t >= 0; --t) {
      idx before = t - 1;
      while (before >= 0 && Base::is_pad(c, b, before)) --before;
      const T* start = c.initial_y ? c.initial_y + head * d : nullptr;
      Base::fetch(y, before < 0 ? start : c.found.at(b, before, h), d, D);
      tanh_of(f, y, D);
      const T* fed = c.found_parts.at(b, t, h);
      Base::fetch(e, c.grad_out.at(b, t, h), d, D);
      Base::fetch(x, fed, d, D);
      phi(q, x, c, D);
      for (idx i = 0; i < D; ++i) dq[i] = dk[i] = 0;
      const bool pad = Base::is_pad(c, b, t);
      if (pad) {
        Base::only_read(R, G, e, q, dq, d, D);
        for (idx i = d; i < n; ++i) dparts[i] = 0;
      } else {
        for (idx j = 0; j < D; j += W) store<T>(e + j, load(e + j) + load(carried + j));
        Base::fetch(x, fed + d, d, D);
        phi(k, x, c, D);
        Base::fetch(u, c.found_written.at(b, t, h), d, D);
        Base::undo(R, G, e, q, k, u, dq, g, old, D);
        const T beta = sigmoid(fed[3 * d]);
        for (idx j = 0; j < D; j += W) store<T>(s + j, load(g + j) * splat(beta));
        Base::grad_of_key(R, G, k, u, s, dk, D);
        phi_back(dk, k, fed + d, c, D);
        T total = 0;
        for (idx i = 0; i < d; ++i) {
          dparts[d + i] = dk[i];
          dparts[2 * d + i] = s[i];
          total += g[i] * (fed[2 * d + i] - old[i]);
        }
        dparts[3 * d] = total * beta * (1 - beta);
      }
      phi_back(dq, q, fed, c, D);
      for (idx i = 0; i < d; ++i) dparts[i] = dq[i];
      T* to = c.grad_parts.at(b, t, h);
      for (idx i = 0; i < n; ++i) to[i] = dparts[i];
      feed_back(df, dparts, A, D, N);
      for (idx i = 0; i < d; ++i) carried[i] = (pad ? carried[i] : T(0)) + df[i] * (1 - f[i] * f[i]);
    }
    Base::put_matrix(c.grad_initial_R + head * d * d, G, d, D);
    for (idx i = 0; i < d; ++i) c.grad_initial_y[head * d + i] = carried[i];
  }
};
