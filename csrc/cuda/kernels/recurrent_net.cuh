// The Recurrent Delta Net. With f = tanh of the y before, and A the slow weight of this head, at each position
//
//     [q', k', v, b'] = parts + f A,  q = phi(q'), k = phi(k'),  beta = sigmoid(b')
//     u = beta (v - R k),  R <- R + u k^T,  y <- R q
//
// where phi(x) = e / (sum of e + eps), e = exp(min(x, largest)). At a pad R is only read, and y stays for the next. A is read
// from memory at each position, transposed, so that lanes read neighbours: it stays in the first cache.
#pragma once

#include "recurrent_block.cuh"

namespace fwp::gpu {

template <int N> struct RecurrentNet : RecurrentBlock<N> {
  typedef RecurrentBlock<N> Base;
  using Base::at, Base::c, Base::column, Base::d, Base::fetch, Base::fetch_column, Base::is_pad, Base::lane, Base::rows,
      Base::stores, Base::warp, Base::warps;
  using typename Base::Matrix;

  const int widths;        // 3 d + 1
  const float* const A;    // (widths, d)

  FWP_DEVICE explicit RecurrentNet(const RecurrenceCall& call)
      : Base(call), widths(3 * Base::d + 1), A(call.weight + int64_t(Base::head) * widths * Base::d) {}

  // The parts with what is fed back, and what is read.
  static FWP_BOTH int forward_bytes(const RecurrenceCall&) { return (3 * rows + 1 + rows) * int(sizeof(float)); }
  // Of each warp and added up: gradients of what is read with and of the key. Gradients of the parts.
  static FWP_BOTH int backward_bytes(const RecurrenceCall& c) {
    return (2 * (recurrent_warps(c) + 1) * rows + recurrent_warps(c) + 3 * rows + 1) * int(sizeof(float));
  }

  FWP_DEVICE void phi(float (&to)[N], const float (&x)[N]) const {
    FWP_UNROLL for (int r = 0; r < N; ++r)
      to[r] = lane + 32 * r < d ? exponential(x[r] > c.largest ? c.largest : x[r]) : 0.f;
    this->normalize(to, c.eps);
  }
  // dx = phi (dphi - phi.dphi) where x is not clipped; into dphi.
  FWP_DEVICE void phi_back(float (&dphi)[N], const float (&phi)[N], const float (&x)[N]) const {
    const float mean = this->dot(phi, dphi);
    FWP_UNROLL for (int r = 0; r < N; ++r) dphi[r] = x[r] > c.largest ? 0.f : phi[r] * (dphi[r] - mean);
  }
  FWP_DEVICE void feed(float (&f)[N], const float (&y)[N]) const {
    FWP_UNROLL for (int r = 0; r < N; ++r) f[r] = hyperbolic_tangent(y[r]);
  }

  FWP_DEVICE void forward() const {
    float* const fed = reinterpret_cast<float*>(shared_memory(forward_bytes(c)));
    float* const read = fed + 3 * rows + 1;
    Matrix R;
    float y[N];
    this->fetch_state(R, y, c.initial_R, c.initial_y);
    FWP_ROLLED for (int64_t t = 0; t < c.length; ++t) {
      float f[N], k[N], x[N];
      feed(f, y);
      const float* const given = at(c.parts, t);
      FWP_ROLLED for (int first = warp_columns * warp; first < widths; first += warp_columns * warps) {
        const int own = first + lane % warp_columns;
        const float part = own < widths ? given[own] : 0.f;
        float products[warp_columns];
        FWP_UNROLL for (int e = 0; e < warp_columns; ++e) {
          products[e] = 0;
          FWP_UNROLL for (int r = 0; r < N; ++r)
            if (first + e < widths && lane + 32 * r < d) products[e] += f[r] * A[(first + e) * d + lane + 32 * r];
        }
        const float total = part + this->column_sums(products);
        if (lane < warp_columns && own < widths) at(c.fed_parts, t)[own] = fed[own] = total;
      }
      sync_block();
      const bool pad = is_pad(t);
      float u = 0;
      if (!pad) {
        fetch(x, fed + d);
        phi(k, x);
        u = this->write(R, k, fetch_column(fed + 2 * d), sigmoid(fed[3 * d]));
      }
      fetch(x, fed);
      phi(f, x);
      const float out = this->read(R, f);
      if (stores()) {
        at(c.written, t)[column] = u;
        at(c.out, t)[column] = read[column] = out;
      }
      sync_block();
      if (!pad) fetch(y, read);
    }
    this->put_state(c.R, c.y, R, y);
  }

  FWP_DEVICE void backward() const {
    float* const parts = reinterpret_cast<float*>(shared_memory(backward_bytes(c)));
    float* const parts_k = parts + warps * rows;
    float *const sums = parts_k + warps * rows, *const sums_k = sums + rows, *const parts_beta = sums_k + rows;
    float* const dparts = parts_beta + warps;
    Matrix R, G;
    float carried[N];
    this->fetch_matrix(R, c.last_R);
    this->fetch_state(G, carried, c.grad_R, c.grad_y);
    FWP_ROLLED for (int64_t t = c.length - 1; t >= 0; --t) {
      const bool pad = is_pad(t);
      const float* const fed = at(c.found_parts, t);
      const float from = this->of_column(carried), dy = fetch_column(at(c.grad_out, t)) + (pad ? 0 : from);
      const float beta = sigmoid(fed[3 * d]);
      float dv = 0, dbeta = 0;
      {
        float q[N], dq[N], x[N], dk[N] = {}, e[warp_columns];
        fetch(x, fed);
        phi(q, x);
        this->spread(e, dy);
        this->read_back(R, G, q, e, dq);
        this->put(parts + warp * rows, dq);
        if (!pad) {
          fetch(x, fed + d);
          phi(q, x);
          const float u = fetch_column(at(c.found_written, t));
          dv = this->write_back(R, G, q, u, fetch_column(fed + 2 * d), beta, dk, dbeta);
        }
        this->put(parts_k + warp * rows, dk);
      }
      if (stores()) dparts[2 * d + column] = dv;
      if (lane == 0) parts_beta[warp] = dbeta;
      sync_block();
      this->add_up(parts, sums);
      this->add_up(parts_k, sums_k);
      if (thread_index() == 0) dparts[3 * d] = this->sum_of_warps(parts_beta) * beta * (1 - beta);
      sync_block();
      if (warp == 0) {
        float phi_of[N], x[N], dx[N];
        FWP_ROLLED for (int part = 0; part < 2; ++part) {  // q, k
          fetch(x, fed + part * d);
          phi(phi_of, x);
          fetch(dx, sums + part * rows);
          phi_back(dx, phi_of, x);
          this->put(dparts + part * d, dx);
        }
      }
      sync_block();
      float df[N] = {};
      FWP_ROLLED for (int n = warp; n < widths; n += warps)
        FWP_UNROLL for (int r = 0; r < N; ++r)
          if (lane + 32 * r < d) df[r] += A[n * d + lane + 32 * r] * dparts[n];
      this->put(parts + warp * rows, df);
      FWP_ROLLED for (int n = thread_index(); n < widths; n += 32 * warps) at(c.grad_parts, t)[n] = dparts[n];
      sync_block();
      this->add_up(parts, sums);
      sync_block();
      float f[N], y[N];
      this->fetch_fed(y, t);
      feed(f, y);
      fetch(df, sums);
      FWP_UNROLL for (int r = 0; r < N; ++r) carried[r] = (pad ? carried[r] : 0.f) + df[r] * (1 - f[r] * f[r]);
    }
    this->put_state(c.grad_initial_R, c.grad_initial_y, G, carried);
  }
};

template <int N> FWP_KERNEL(recurrent_threads<N>, 1) recur_net_kernel(FWP_CONSTANT RecurrenceCall c) {
  RecurrentNet<N>(c).forward();
}
template <int N> FWP_KERNEL(recurrent_threads<N>, 1) recur_net_backward_kernel(FWP_CONSTANT RecurrenceCall c) {
  RecurrentNet<N>(c).backward();
}

}  // namespace fwp::gpu
