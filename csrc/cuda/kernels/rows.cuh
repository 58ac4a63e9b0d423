// Features of queries and keys, which the kernels that follow know alone, and their gradients' way back: a warp a row.
#pragma once

#include "features.cuh"
#include "tokens.cuh"

namespace fwp::gpu {

constexpr int rows_of_block = 4 * (most_threads / 32);  // one after the other, 4 for each warp

FWP_BOTH int rows_of_head(const Call& c) { return query_rows(c) + key_rows(c); }
FWP_BOTH int row_blocks_of_head(const Call& c) { return (rows_of_head(c) + rows_of_block - 1) / rows_of_block; }
// Shared memory of a block: each warp has, in the backward, the gradient of phi, and x and phi.
FWP_BOTH int gradient_floats(const Call& c, bool back) { return back ? round_up(c.d_dot, 4) : 0; }
FWP_BOTH int row_floats(const Call& c, bool back) {
  return gradient_floats(c, back) + round_up(2 * c.d_key + c.d_dot, 4);
}
FWP_BOTH int rows_bytes(const Call& c, bool back) { return most_threads / 32 * 4 * row_floats(c, back); }

struct FeatureRow : Head {
  const bool of_query;
  const int token, rows, length;  // of so many rows and tokens
  float *gradient, *x, *phi;

  FWP_DEVICE FeatureRow(const Call& call, int head, int row, bool back)
      : Head(call, head), of_query(row < query_rows(call)), token(row - (of_query ? 0 : query_rows(call))),
        rows(of_query ? query_rows(call) : key_rows(call)), length(of_query ? c.targets : c.sources) {
    gradient = reinterpret_cast<float*>(shared_memory(rows_bytes(c, back))) + warp_index() * row_floats(c, back);
    x = gradient + gradient_floats(c, back);
    phi = x + 2 * c.d_key;
  }

  FWP_DEVICE bool is_empty() const { return token >= length || (!of_query && is_pad(token)); }
  FWP_DEVICE Features<Call> features() const { return {c, x, c.projection_turned, phi}; }
  FWP_DEVICE int64_t first_feature() const { return (int64_t(head) * rows + token) * features_of(c); }
  // The first numbers of x, lane by lane: they are asked for while the row before is worked on.
  static constexpr int some = 4;
  FWP_DEVICE float number(int d) const {
    const Rows<const void>& from = of_query ? c.q : c.k;
    return token < length && d < c.d_key ? load(c.type, from.data, offset(from, token, length) + d) : 0.f;
  }
  FWP_DEVICE void ask(float (&numbers)[some]) const {
    FWP_UNROLL (int n = 0; n < some; ++n) numbers[n] = number(Lanes().lane + 32 * n);
  }
  // phi in shared memory; returns by what it has to be multiplied.
  FWP_DEVICE float make(const float (&numbers)[some]) const {
    const Features<Call> map = features();
    const bool empty = is_empty();
    FWP_UNROLL (int n = 0; n < some; ++n)
      if (map.lane + 32 * n < c.d_key) map.take(map.lane + 32 * n, empty ? 0.f : numbers[n]);
    FWP_ROLLED (int d = map.lane + 32 * some; d < c.d_key; d += 32) map.take(d, empty ? 0.f : number(d));
    sync_warp();
    return map.norm(empty, map.make());
  }
  FWP_DEVICE void run(const float (&numbers)[some]) const {
    const float by = make(numbers);
    const Pairs& to = of_query ? c.phi_q : c.phi_k;
    const int64_t first = first_feature();
    const auto at = [&](int i) { return i < c.d_dot ? by * phi[i] : 0.f; };
    Lanes().each(features_of(c) / 4, [&](int n) {
      const Float2 a{at(4 * n), at(4 * n + 1)}, b{at(4 * n + 2), at(4 * n + 3)};
      const uint32_t high[2] = {high_pair(a), high_pair(b)};
      put_four(to.high + first + 4 * n, high[0], high[1]);
      put_four(to.low + first + 4 * n, low_pair(a, high[0]), low_pair(b, high[1]));
    });
  }
  static FWP_DEVICE void put_four(uint16_t* to, uint32_t a, uint32_t b) {
    *reinterpret_cast<uint64_t*>(to) = a | uint64_t(b) << 32;
  }
  FWP_DEVICE void run_back(const float (&numbers)[some]) const {
    if (token >= length) return;
    const float* const from = (of_query ? c.grad_phi_q : c.grad_phi_k) + first_feature();
    const Features<Call> map = features();
    FWP_ROLLED (int i = 4 * map.lane; i < c.d_dot; i += 128) start_copy(gradient + i, from + i);
    const float by = make(numbers);
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

// Calls f(row, its first numbers) for the rows of this warp.
template <class F> FWP_DEVICE void each_row(const Call& c, bool back, F f) {
  const int blocks = row_blocks_of_head(c), head = block_index() / blocks;
  const int first = block_index() % blocks * rows_of_block, rows = rows_of_head(c);
  const int end = first + rows_of_block < rows ? first + rows_of_block : rows, step = most_threads / 32;
  float next[FeatureRow::some];
  if (first + warp_index() < end) FeatureRow(c, head, first + warp_index(), back).ask(next);
  FWP_ROLLED (int n = first + warp_index(); n < end; n += step) {
    float numbers[FeatureRow::some];
    FWP_UNROLL (int i = 0; i < FeatureRow::some; ++i) numbers[i] = next[i];
    if (n + step < end) FeatureRow(c, head, n + step, back).ask(next);
    f(FeatureRow(c, head, n, back), numbers);
    sync_warp();
  }
}

FWP_KERNEL(most_threads, 8) rows_kernel(FWP_CONSTANT Call c) {
  each_row(c, false, [](const FeatureRow& row, const float (&numbers)[FeatureRow::some]) { row.run(numbers); });
}
FWP_KERNEL(most_threads, 8) rows_back_kernel(FWP_CONSTANT Call c) {
  each_row(c, true, [](const FeatureRow& row, const float (&numbers)[FeatureRow::some]) { row.run_back(numbers); });
}

}  // namespace fwp::gpu
