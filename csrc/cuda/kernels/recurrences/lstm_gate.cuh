// The second half of the backward pass of the Delta LSTM (lstm.cuh). From dx, the gradients of x at every position, it
// computes those of k, v, beta and the first R: it goes back once more, separately for each gate, with its R and G, the
// gradient of R. At each position G <- G + dx f^T, and then back through w = beta (v - R k), R <- R + w k^T as in
// RecurrentBlock.
#pragma once

#include "lstm.cuh"

namespace fwp::gpu {

// A block processes one gate of a head; `heads` of its call is 3 H, the heads of all gates.
template <int N> struct LstmGate : RecurrentBlock<N> {
  typedef RecurrentBlock<N> Base;
  using Base::at, Base::b, Base::column, Base::d, Base::fetch, Base::fetch_column, Base::head, Base::is_pad, Base::lane,
      Base::rows, Base::stores, Base::warp, Base::warps;

  const LstmCall& c;

  FWP_DEVICE explicit LstmGate(const LstmCall& call) : Base(call), c(call) {}

  // Each warp's parts of the gradients of the key and of beta, of two positions in turn, as in the forward pass.
  static FWP_BOTH int backward_bytes(const RecurrenceCall& c) {
    return 2 * recurrent_warps(c) * (rows + 1) * int(sizeof(float));
  }

  FWP_DEVICE void backward() const {
    float* const parts = reinterpret_cast<float*>(shared_memory(backward_bytes(c)));
    float* const parts_beta = parts + 2 * warps * rows;
    const int nets = int(c.heads) / lstm_gates, net = head % nets;
    const float* const initial = c.initial_y ? c.initial_y + (b * nets + net) * d : nullptr;
    typename Base::Matrix R, G;
    this->fetch_matrix(R, c.last_R);
    this->fetch_matrix(G, c.grad_R);
    int slot = 0;
    int64_t before = c.length;
    FWP_ROLLED (int64_t t = c.length - 1; t >= 0; --t) {
      {
        float f[N], h[N];
        this->go_before(t, before);
        fetch(h, before >= 0 ? at(c.found, before, net) : initial);
        this->softmax(f, h);
        this->add(G, f, fetch_column(at(c.grad_z, t)));
      }
      float dv = 0, dbeta = 0, dk[N] = {};
      if (!is_pad(t)) {
        float k[N];
        fetch(k, at(c.k, t));
        const float w = fetch_column(at(c.found_written, t)), v = fetch_column(at(c.v, t));
        dv = this->write_back(R, G, k, w, v, *at(c.beta, t), dk, dbeta);
      }
      if (stores()) at(c.grad_v, t)[column] = dv;
      this->put(parts + (slot * warps + warp) * rows, dk);
      if (lane == 0) parts_beta[slot * warps + warp] = dbeta;
      sync_block();
      this->add_up(parts + slot * warps * rows, at(c.grad_k, t));
      if (thread_index() == 0) *at(c.grad_beta, t) = this->sum_of_warps(parts_beta + slot * warps);
      slot = 1 - slot;
    }
    this->put_matrix(c.grad_initial_R, G);
  }
};

template <int N> FWP_KERNEL(recurrent_threads<N>, 1) recur_lstm_gate_backward_kernel(FWP_CONSTANT LstmCall c) {
  LstmGate<N>(c).backward();
}

}  // namespace fwp::gpu
