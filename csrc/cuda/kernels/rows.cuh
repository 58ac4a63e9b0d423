// Converts the rows of q and k to the inputs of features, which are all that the later kernels read, and their
// gradients back to those of q and k.
//
// Under DPFP the inputs are x, and each thread has a row. To normalise features by a factor, x is multiplied by its
// square root, because DPFP features are products of two numbers of x. For the same reason, the inner product of the
// features with their gradient is half that of x with its gradient. Under all other maps the inputs are the features
// themselves, and each warp has a row.
#pragma once

#include "maps.cuh"

namespace fwp::gpu {

constexpr int rows_of_block = 16;  // the rows that share a power; a warp has every fourth one

FWP_BOTH int rows_of_head(const Call& c) { return query_rows(c) + key_rows(c); }
FWP_BOTH int row_blocks_of_head(const Call& c) {
  const int some = is_dpfp(c) ? most_threads : rows_of_block;
  return (rows_of_head(c) + some - 1) / some;
}
// Shared memory of a block: features of a row for each warp; in the forward pass, the largest feature of each row follows.
FWP_BOTH int rows_bytes(const Call& c, bool back) {
  return is_dpfp(c) ? 0 : 4 * (most_threads / 32 * features_of(c) + (back ? 0 : rows_of_block));
}

// A row of queries or of keys.
struct InputRow : Head {
  const bool of_query;
  const int row_of_head, token, rows, length;  // rows, length: how many rows and tokens there are
  const Rows<const void>& from;

  FWP_DEVICE InputRow(const Call& call, int head, int row)
      : Head(call, head), of_query(row < query_rows(call)), row_of_head(row),
        token(row - (of_query ? 0 : query_rows(call))), rows(of_query ? query_rows(call) : key_rows(call)),
        length(of_query ? c.targets : c.sources), from(of_query ? c.q : c.k) {}

  FWP_DEVICE bool is_empty() const { return token >= length || (!of_query && is_pad(token)); }
  FWP_DEVICE Matrix inputs() const {
    const Halves& to = of_query ? c.x_q : c.x_k;
    const int64_t first = int64_t(head) * rows, width = inputs_of(c);
    return {{to.numbers + first * width, to.powers + first / 16 * (width / 16)}, int(width)};
  }
  FWP_DEVICE float* gradient_of_inputs() const {
    return (of_query ? c.grad_x_q : c.grad_x_k) + (int64_t(head) * rows + token) * inputs_of(c);
  }
  // Returns put(d, gradient of x_d), which writes to the caller's tensor.
  FWP_DEVICE auto putting() const {
    const Rows<void>& to = of_query ? c.grad_q : c.grad_k;
    return [data = to.data, at = offset(to, token, length), type = c.x_type, empty = is_empty()](int d, float y) {
      store(type, data, at + d, empty ? 0.f : y);
    };
  }
};

struct DpfpRow : InputRow {
  const bool empty;
  const int64_t at;
  const Matrix to;

  FWP_DEVICE DpfpRow(const Call& call, int head, int row)
      : InputRow(call, head, row), empty(is_empty()), at(empty ? 0 : offset(from, token, length)), to(inputs()) {}

  FWP_DEVICE float& scale() const { return c.x_scales[int64_t(head) * rows_of_head(c) + row_of_head]; }
  FWP_DEVICE uint16_t* inputs_from(int i) const { return to.number(token, before_x(c) + i); }
  // x_i to x_{i+7}, and 0 beyond the last one.
  FWP_DEVICE void eight_of(int i, float (&y)[8]) const {
    if (from.aligned && c.x_type != Type::float32)
      unpack(c.x_type, empty ? Eight{} : eight(static_cast<const uint16_t*>(from.data) + at + i), y);
    else
      FWP_UNROLL (int n = 0; n < 8; ++n) y[n] = empty || i + n >= c.d_key ? 0.f : load(c.x_type, from.data, at + i + n);
  }
  FWP_DEVICE void put_inputs(int i, const float (&y)[8], float by) const {
    Eight z;
    FWP_UNROLL (int n = 0; n < 4; ++n) z.w[n] = pack_halves(by * y[2 * n], by * y[2 * n + 1]);
    put_eight(inputs_from(i), z);
  }
  // Stores the numbers before x_0 (dpfp.cuh), copied from x in memory.
  FWP_DEVICE void put_before() const {
    FWP_ROLLED (int i = -1; i >= -before_x(c); --i) *inputs_from(i) = *inputs_from(i + c.d_key) ^ 0x8000;
  }
  // Calls f(b, j, y, w) with y = x_b .. x_{b+7} and w = x_{b-j-1} .. x_{b-j+8}; their products give the features of
  // offsets j and j + 1.
  template <class F> FWP_DEVICE void each_window(int end, F f) const {
    FWP_ROLLED (int j = 1; j <= c.nu; j += 2)
      FWP_ROLLED (int b = 0; b < end; b += 8) {
        const Eight here = eight(inputs_from(b));
        uint32_t window[5];
        load_window(window, here, inputs_from(b), j);
        float y[8], w[10];
        unpack(Type::float16, here, y);
        FWP_UNROLL (int n = 0; n < 5; ++n) w[2 * n] = first_half(window[n]), w[2 * n + 1] = second_half(window[n]);
        f(b, j, y, w);
      }
  }
  // Sums all features: for x and for -x together, a product of two numbers gives one feature, the product or 0.
  FWP_DEVICE float sum_of_features(int end) const {
    float sum = 0;
    each_window(end, [&](int, int j, const float (&y)[8], const float (&w)[10]) {
      FWP_UNROLL (int n = 0; n < 8; ++n)
        sum += larger(y[n] * w[n + 1], 0.f) + (j < c.nu ? larger(y[n] * w[n], 0.f) : 0.f);
    });
    return sum;
  }
  // Adds `by` times the gradient of the sum of features to g, the gradient of x and of the numbers before it.
  FWP_DEVICE void add_sums_gradient(float* g, float by) const {
    each_window(c.d_key, [&](int b, int j, const float (&y)[8], const float (&w)[10]) {
      float here[8] = {}, before[10] = {};
      FWP_UNROLL (int n = 0; n < 8; ++n) {
        if (y[n] * w[n + 1] > 0) here[n] += w[n + 1], before[n + 1] += y[n];
        if (j < c.nu && y[n] * w[n] > 0) here[n] += w[n], before[n] += y[n];
      }
      FWP_UNROLL (int n = 0; n < 8; ++n) g[b + n] += by * here[n];
      FWP_UNROLL (int n = 0; n < 10; ++n) g[b - j - 1 + n] += by * before[n];
    });
  }
  // The power of two of a block of 16 rows, which brings features below 2^14.
  static FWP_DEVICE float power_of_rows(float most) {
    FWP_UNROLL (int mask = 1; mask < 16; mask *= 2) most = larger(most, shuffle_xor(most, mask));
    return power_of_block(most, 7, -20, 29);
  }
  // Run by all lanes of a warp, of which some may have no row.
  FWP_DEVICE void run(bool there) const {
    const int end = there ? c.d_key : 0;
    float most = 0, y[8], by = empty ? 0.f : 1.f;
    FWP_ROLLED (int i = 0; i < end; i += 8) {
      eight_of(i, y);
      FWP_UNROLL (int n = 0; n < 8; ++n) most = larger(most, absolute(y[n]));
    }
    float power = power_of_rows(most);
    FWP_ROLLED (int i = 0; i < end; i += 8) eight_of(i, y), put_inputs(i, y, undone(power));
    if (c.normalize_features) {
      if (there) put_before();
      by *= square_root(inverse_of(power * power * sum_of_features(end) + c.eps));
      power = power_of_rows(most * by);
      FWP_ROLLED (int i = 0; i < end; i += 8) eight_of(i, y), put_inputs(i, y, by * undone(power));
    }
    if (!there) return;
    put_before();
    scale() = by;
    if (token % 16 == 0) to.at.powers[to.block(token, 0)] = power * power;
  }
  FWP_DEVICE void run_back() const {
    float* const g = gradient_of_inputs() + before_x(c);
    if (c.normalize_features) {
      float product = 0;
      FWP_ROLLED (int i = -before_x(c); i < c.d_key; i += 8) {
        float y[8];
        unpack(Type::float16, eight(inputs_from(i)), y);
        FWP_UNROLL (int n = 0; n < 8; ++n) product += g[i + n] * y[n];
      }
      add_sums_gradient(g, -to.at.powers[to.block(token / 16 * 16, 0)] * product / 2);
    }
    FWP_ROLLED (int i = -before_x(c); i < 0; ++i) g[i + c.d_key] -= g[i];
    const float by = scale();
    const auto put = putting();
    const Rows<void>& out = of_query ? c.grad_q : c.grad_k;
    FWP_ROLLED (int i = 0; i < c.d_key; i += 8) {
      float y[8];
      FWP_UNROLL (int n = 0; n < 8; ++n) y[n] = g[i + n];
      if (out.aligned && c.x_type != Type::float32)
        put_eight(static_cast<uint16_t*>(out.data) + offset(out, token, length) + i, packed(c.x_type, y, by));
      else
        FWP_UNROLL (int n = 0; n < 8; ++n)
          if (i + n < c.d_key) put(i + n, by * y[n]);
    }
  }
};

struct FeatureRow : InputRow {
  const Lanes lanes;
  float* const phi;

  FWP_DEVICE FeatureRow(const Call& call, int head, int row, bool back)
      : InputRow(call, head, row),
        phi(reinterpret_cast<float*>(shared_memory(rows_bytes(c, back))) + warp_index() * features_of(c)) {}

  // Computes phi in shared memory, followed by zeros; returns the factor that normalises it.
  FWP_DEVICE float make() const {
    const bool empty = is_empty();
    const int64_t at = offset(from, token, length);
    const float sum = lanes.sum(features_of(c), [&](int i) {
      return phi[i] = empty || i >= c.d_dot ? 0.f : function_of(c.map, load(c.x_type, from.data, at + i));
    });
    sync_warp();
    return empty ? 0.f : c.normalize_features ? inverse_of(sum + c.eps) : 1.f;
  }
  struct alignas(16) EightFloats {
    float x[8];
  };
  FWP_DEVICE const EightFloats& eight_floats(int i) const { return reinterpret_cast<const EightFloats*>(phi)[i]; }
  // Stores features, scaled by a power of two for the row; returns the largest magnitude.
  FWP_DEVICE float run() const {
    const float by = make();
    const Matrix to = inputs();
    float most = 0;
    lanes.each(to.ld / 8, [&](int i) {
      const EightFloats y = eight_floats(i);
      FWP_UNROLL (int n = 0; n < 8; ++n) most = larger(most, absolute(y.x[n]));
    });
    most = largest_of_warp(most) * absolute(by);
    const float scaled = by * undone(power_of_block(most));
    lanes.each(to.ld / 8, [&](int i) {
      const EightFloats x = eight_floats(i);
      Eight y;
      FWP_UNROLL (int n = 0; n < 4; ++n) y.w[n] = pack_halves(scaled * x.x[2 * n], scaled * x.x[2 * n + 1]);
      put_eight(to.number(token, 8 * i), y);
    });
    return most;
  }
  // Scales them by the power of two for the block instead, whose largest magnitude is `all`.
  FWP_DEVICE void join(float most, float all) const {
    const Matrix to = inputs();
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
    const float* const g = gradient_of_inputs();
    const float by = make();
    const float mean = c.normalize_features ? by * lanes.sum(c.d_dot, [&](int i) { return phi[i] * g[i]; }) : 0.f;
    const auto put = putting();
    lanes.each(c.d_dot, [&](int i) { put(i, function_back(c.map, by * (g[i] - mean), phi[i])); });
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

// The row of this thread under DPFP, and whether there is one.
FWP_DEVICE DpfpRow own_dpfp_row(const Call& c, bool& there) {
  const int blocks = row_blocks_of_head(c), row = block_index() % blocks * most_threads + thread_index();
  there = row < rows_of_head(c);
  return DpfpRow(c, block_index() / blocks, there ? row : 0);
}

FWP_KERNEL(most_threads, 8) rows_kernel(FWP_CONSTANT Call c) {
  if (is_dpfp(c)) {
    bool there;
    const DpfpRow row = own_dpfp_row(c, there);
    return row.run(there);
  }
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
  if (is_dpfp(c)) {
    bool there;
    const DpfpRow row = own_dpfp_row(c, there);
    if (there && row.token < row.length) row.run_back();
    return;
  }
  each_row(c, true, [](const FeatureRow& row, int) { row.run_back(); });
}

}  // namespace fwp::gpu
