// Features of queries and keys, which the kernels that follow know alone, and their gradients' way back: a warp a row.
#pragma once

#include "features.cuh"
#include "tokens.cuh"

namespace fwp::gpu {

constexpr int rows_of_block = 16;  // those of a block of halves; a warp has every fourth one

FWP_BOTH int rows_of_head(const Call& c) { return query_rows(c) + key_rows(c); }
FWP_BOTH int row_blocks_of_head(const Call& c) { return (rows_of_head(c) + rows_of_block - 1) / rows_of_block; }
// Shared memory of a block: each warp has, in the backward, the gradient of phi, and x and phi. In the forward, the
// largest feature of each row follows.
FWP_BOTH int gradient_floats(const Call& c, bool back) { return back ? round_up(c.d_dot, 4) : 0; }
FWP_BOTH int row_floats(const Call& c, bool back) {
  return gradient_floats(c, back) + round_up(2 * c.d_key, 4) + features_of(c);
}
FWP_BOTH int rows_bytes(const Call& c, bool back) {
  return 4 * (most_threads / 32 * row_floats(c, back) + (back ? 0 : rows_of_block));
}

struct FeatureRow : Head {
  const bool of_query;
  const int token, rows, length;  // of so many rows and tokens
  float *gradient, *x, *phi;

  FWP_DEVICE FeatureRow(const Call& call, int head, int row, bool back)
      : Head(call, head), of_query(row < query_rows(call)), token(row - (of_query ? 0 : query_rows(call))),
        rows(of_query ? query_rows(call) : key_rows(call)), length(of_query ? c.targets : c.sources) {
    gradient = reinterpret_cast<float*>(shared_memory(rows_bytes(c, back))) + warp_index() * row_floats(c, back);
    x = gradient + gradient_floats(c, back);
    phi = x + round_up(2 * c.d_key, 4);
  }

  FWP_DEVICE bool is_empty() const { return token >= length || (!of_query && is_pad(token)); }
  FWP_DEVICE Features<Call> features() const { return {c, x, c.projection_turned, phi}; }
  FWP_DEVICE int64_t first_feature() const { return (int64_t(head) * rows + token) * features_of(c); }
  // phi in shared memory; returns by what it has to be multiplied.
  FWP_DEVICE float make() const {
    const Features<Call> map = features();
    const bool empty = is_empty();
    const Rows<const void>& from = of_query ? c.q : c.k;
    const void* const data = from.data;
    const int64_t at = offset(from, token, length);
    map.each(c.d_key, [&](int d) { map.take(d, empty ? 0.f : load(c.type, data, at + d)); });
    sync_warp();
    return map.norm(empty, map.make());
  }
  FWP_DEVICE Matrix matrix() const {
    const Halves& to = of_query ? c.phi_q : c.phi_k;
    const int64_t first = int64_t(head) * rows * features_of(c);
    return {{to.numbers + first, to.powers + first / (16 * 16)}, features_of(c)};
  }
  struct alignas(16) EightFloats {
    float x[8];
  };
  FWP_DEVICE const EightFloats& eight_floats(int i) const { return reinterpret_cast<const EightFloats*>(phi)[i]; }
  // Stores features with a power of their row; returns the largest one.
  FWP_DEVICE float run() const {
    const float by = make();
    const Matrix to = matrix();
    const Lanes lanes;
    FWP_ROLLED (int i = c.d_dot + lanes.lane; i < to.ld; i += 32) phi[i] = 0;
    sync_warp();
    float most = 0;
    lanes.each(to.ld / 8, [&](int i) {
      const EightFloats y = eight_floats(i);
      FWP_UNROLL (int n = 0; n < 8; ++n) most = larger(most, absolute(y.x[n]));
    });
    FWP_UNROLL (int mask = 16; mask > 0; mask /= 2) most = larger(most, shuffle_xor(most, mask));
    most *= absolute(by);
    const float power = undone(power_of_block(most));
    const float scaled = by * power;
    lanes.each(to.ld / 8, [&](int i) {
      const EightFloats x = eight_floats(i);
      Eight y;
      FWP_UNROLL (int n = 0; n < 4; ++n) y.w[n] = pack_halves(scaled * x.x[2 * n], scaled * x.x[2 * n + 1]);
      put_eight(to.number(token, 8 * i), y);
    });
    return most;
  }
  // Gives them that of their block instead, whose largest number is `all`.
  FWP_DEVICE void join(float most, float all) const {
    const Matrix to = matrix();
    const Lanes lanes;
    const float power = power_of_block(all), by = power_of_block(most) * undone(power);
    if (by != 1)
      lanes.each(to.ld / 8, [&](int i) {
        uint16_t* const at = to.number(token, 8 * i);
        Eight y = eight(at);
        FWP_UNROLL (int n = 0; n < 4; ++n) y.w[n] = pack_halves(by * first_half(y.w[n]), by * second_half(y.w[n]));
        put_eight(at, y);
      });
    if (token % 16 == 0) lanes.each(to.ld / 16, [&](int i) { to.at.powers[to.block(token, 16 * i)] = power; });
  }
  FWP_DEVICE void run_back() const {
    if (token >= length) return;
    const Features<Call> map = features();
    const float* const from = (of_query ? c.grad_phi_q : c.grad_phi_k) + first_feature();
    FWP_ROLLED (int i = 4 * map.lane; i < c.d_dot; i += 128) start_copy(gradient + i, from + i);
    const float by = make();
    copies_arrived();
    sync_warp();
    const float mean = c.normalize_features ? by * map.sum(c.d_dot, [&](int i) { return phi[i] * gradient[i]; }) : 0.f;
    map.each(c.d_dot, [&](int i) { gradient[i] = by * (gradient[i] - mean); });
    sync_warp();
    const Rows<void>& to = of_query ? c.grad_q : c.grad_k;
    void* const data = to.data;
    const int64_t at = offset(to, token, length);
    const bool empty = is_empty();
    map.back(gradient, c.projection, [&](int d, float y) { store(c.type, data, at + d, empty ? 0.f : y); });
  }
};

// Calls f(row, its number in the block) for the rows of this warp.
template <class F> FWP_DEVICE void each_row(const Call& c, bool back, F f) {
  const int blocks = row_blocks_of_head(c), head = block_index() / blocks;
  const int first = block_index() % blocks * rows_of_block;
  FWP_ROLLED (int i = warp_index(); i < rows_of_block; i += most_threads / 32) {
    f(FeatureRow(c, head, first + i, back), i);
    sync_warp();
  }
}

FWP_KERNEL(most_threads, 8) rows_kernel(FWP_CONSTANT Call c) {
  const int bytes = rows_bytes(c, false);
  float* const most = reinterpret_cast<float*>(shared_memory(bytes) + bytes) - rows_of_block;
  each_row(c, false, [&](const FeatureRow& row, int i) {
    const float y = row.run();
    if (thread_index() % 32 == 0) most[i] = y;
  });
  sync_block();
  float all = most[0];
  FWP_UNROLL (int i = 1; i < rows_of_block; ++i) all = larger(all, most[i]);
  each_row(c, false, [&](const FeatureRow& row, int i) { row.join(most[i], all); });
}
FWP_KERNEL(most_threads, 8) rows_back_kernel(FWP_CONSTANT Call c) {
  each_row(c, true, [](const FeatureRow& row, int) { row.run_back(); });
}

}  // namespace fwp::gpu
