// The recurrence of the Delta RNN: at each position that is no pad
//
//     u = beta (v - R k),  R <- R + u k^T,  y <- z + R f,  f = softmax of the y before
//
// The forward keeps u of every position and the last R. The backward goes from the last position to the first and
// subtracts u k^T from R again, so it needs only one R, and G, the gradient of R.
#pragma once

#include "recurrent_block.cuh"

namespace fwp::gpu {

template <int N> struct Recurrence : RecurrentBlock<N> {
  typedef RecurrentBlock<N> Base;
  using Base::at, Base::b, Base::c, Base::column, Base::d, Base::fetch, Base::fetch_column, Base::head, Base::is_pad,
      Base::lane, Base::rows, Base::stores, Base::warp, Base::warps;
  using typename Base::Matrix;

  using Base::Base;

  // Outputs of two positions in turn, because a warp can be one position ahead of warps that still read the previous
  // output.
  static FWP_BOTH int forward_bytes(const RecurrenceCall&) { return 2 * rows * int(sizeof(float)); }
  static FWP_BOTH int backward_bytes(const RecurrenceCall& c) {
    return ((2 * recurrent_warps(c) + 1) * rows + recurrent_warps(c)) * int(sizeof(float));
  }

  // The inputs of a position, loaded when the position begins and not earlier.
  struct Given {
    float k[N], v = 0, beta = 0, z = 0;
    bool pad;

    FWP_DEVICE Given(const Recurrence& block, int64_t t) : pad(block.is_pad(t)) {
      block.fetch(k, block.at(block.c.k, t));
      v = block.fetch_column(block.at(block.c.v, t));
      z = block.fetch_column(block.at(block.c.z, t));
      beta = *block.at(block.c.beta, t);
    }
  };

  FWP_DEVICE void forward() const {
    float* const shared = reinterpret_cast<float*>(shared_memory(forward_bytes(c)));
    Matrix R;
    float y[N], f[N];
    this->fetch_matrix(R, c.initial_R);
    fetch(y, this->carried(c.initial_y));
    int slot = 0;
    FWP_ROLLED (int64_t t = 0; t < c.length; ++t) {
      const Given now(*this, t);
      this->softmax(f, y);
      const float u = now.pad ? 0 : this->write(R, now.k, now.v, now.beta);
      const float out = now.z + this->read(R, f);
      if (stores()) {
        at(c.written, t)[column] = u;
        at(c.out, t)[column] = out;
        shared[slot * rows + column] = out;
      }
      if (now.pad) continue;
      sync_block();
      fetch(y, shared + slot * rows);
      slot = 1 - slot;
    }
    this->put_matrix(c.R, R);
    if (warp == 0) this->put(this->carried(c.y), y);
  }

  FWP_DEVICE void backward() const {
    float* const parts = reinterpret_cast<float*>(shared_memory(backward_bytes(c)));  // of df and dk, of each warp
    float* const parts_k = parts + warps * rows;
    float *const sums = parts_k + warps * rows, *const parts_beta = sums + rows;
    Matrix R, G;
    float carried[N];
    this->fetch_matrix(R, c.last_R);
    this->fetch_matrix(G, c.grad_R);
    fetch(carried, this->carried(c.grad_y));
    int64_t before = c.length;
    FWP_ROLLED (int64_t t = c.length - 1; t >= 0; --t) {
      const bool pad = is_pad(t);
      float f[N], df[N], dk[N] = {};
      {
        float y[N];
        this->go_before(t, before);
        fetch(y, before >= 0 ? at(c.found, before) : this->carried(c.initial_y));
        this->softmax(f, y);
      }
      const float fed = this->of_column(carried), dy = fetch_column(at(c.grad_out, t)) + (pad ? 0 : fed);
      {
        float e[warp_columns];
        this->spread(e, dy);
        this->read_back(R, G, f, e, df);
      }
      float dv = 0, dbeta = 0;
      if (!pad) {
        float k[N];
        fetch(k, at(c.k, t));
        const float u = fetch_column(at(c.found_written, t)), v = fetch_column(at(c.v, t));
        dv = this->write_back(R, G, k, u, v, *at(c.beta, t), dk, dbeta);
      }
      if (stores()) {
        at(c.grad_z, t)[column] = dy;
        at(c.grad_v, t)[column] = dv;
      }
      this->put(parts + warp * rows, df);
      this->put(parts_k + warp * rows, dk);
      if (lane == 0) parts_beta[warp] = dbeta;
      sync_block();
      this->add_up(parts, sums);
      this->add_up(parts_k, at(c.grad_k, t));
      if (thread_index() == 0) *at(c.grad_beta, t) = this->sum_of_warps(parts_beta);
      sync_block();
      fetch(df, sums);
      const float mean = this->dot(f, df);
      FWP_UNROLL (int r = 0; r < N; ++r) carried[r] = (pad ? carried[r] : 0.f) + f[r] * (df[r] - mean);
    }
    this->put_matrix(c.grad_initial_R, G);
    if (warp == 0) this->put(this->carried(c.grad_initial_y), carried);
  }
};

template <int N> FWP_KERNEL(recurrent_threads<N>, 1) recur_kernel(FWP_CONSTANT RecurrenceCall c) {
  Recurrence<N>(c).forward();
}
template <int N> FWP_KERNEL(recurrent_threads<N>, 1) recur_backward_kernel(FWP_CONSTANT RecurrenceCall c) {
  Recurrence<N>(c).backward();
}

}  // namespace fwp::gpu
