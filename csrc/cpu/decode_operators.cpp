// Tensors to plain pointers, one task per row and head, and the registration of the decoding kernels.
#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <torch/library.h>

#include <tuple>
#include <vector>

#include "../checks.h"
#include "capability.h"
#include "decode_call.h"
#include "tensors.h"

namespace fwp {

#define FWP_DECLARE(name)                                \
  namespace name {                                       \
  const DecodeKernels<float>& decode_kernels_of(float);  \
  const DecodeKernels<double>& decode_kernels_of(double);\
  }
FWP_DECLARE(capability_default)
#if defined(__x86_64__)
FWP_DECLARE(capability_avx2)
FWP_DECLARE(capability_avx512)
#endif
#undef FWP_DECLARE

namespace {

template <class T> const DecodeKernels<T>& chosen() {
#if defined(__x86_64__)
  static const std::string name = capability_name();
  if (name == "avx2") return capability_avx2::decode_kernels_of(T());
  if (name != "default") return capability_avx512::decode_kernels_of(T());
#endif
  return capability_default::decode_kernels_of(T());
}

// What decode and fold share.
struct Block {
  const char* op;
  Tensor keys, values;
  OptionalTensor strengths, ancestors;
  Tensor rows;
  OptionalTensor W, z;
  int64_t count;
  std::string rule, feature_map;
  int64_t d_dot;
  bool normalize_output;

  int64_t stored() const { return keys.size(1); }
  int64_t heads() const { return keys.size(2); }
  int64_t reading() const { return ancestors ? ancestors->size(0) : rows.size(0); }

  void check_like_keys(const char* name, const Tensor& x) const {
    TORCH_CHECK_VALUE(x.scalar_type() == keys.scalar_type(), op, ": ", name, " is of type ", x.scalar_type(),
                      ", expected that of keys, ", keys.scalar_type());
    TORCH_CHECK_VALUE(x.is_contiguous(), op, ": ", name, " is not contiguous");
  }

  // Every entry of a table is a row of storage, so that nothing outside of it is read.
  void check_table(const char* name, const Tensor& table, int64_t columns, int64_t end) const {
    TORCH_CHECK_VALUE(table.scalar_type() == at::kInt && table.is_contiguous(), op, ": ", name, " is of type ",
                      table.scalar_type(), ", expected a contiguous Int");
    const int32_t* p = table.const_data_ptr<int32_t>();
    const int64_t ld = table.dim() > 1 ? table.size(1) : 1;
    bool inside = true;
    for (int64_t r = 0; r < table.size(0); ++r)
      for (int64_t j = 0; j < columns; ++j) inside = inside & (uint32_t(p[r * ld + j]) < uint64_t(end));
    TORCH_CHECK_INDEX(inside, op, ": ", name, " names a row outside of 0 .. ", end - 1);
  }

  void check(int64_t writing) const {
    check_type(op, keys);
    check_rank(op, "keys", keys, 4);
    check_rank(op, "values", values, 4);
    const int64_t C = keys.size(0), N = stored(), H = heads();
    check_shape(op, "values", values, {C, N, H, values.size(3)});
    check_like_keys("keys", keys);
    check_like_keys("values", values);
    TORCH_CHECK_VALUE(count >= 0 && count + writing <= C, op, ": the block has room for ", C, " positions, got count = ",
                      count, " and ", writing, " to write");
    TORCH_CHECK_VALUE(rule == "sum" || rule == "delta" || rule == "gated", op, ": rule is ", rule,
                      ", expected sum, delta or gated");
    TORCH_CHECK_VALUE((rule == "gated") == strengths.has_value(), op, ": strengths are ",
                      strengths ? "given" : "missing", " for the rule ", rule);
    if (strengths) {
      check_shape(op, "strengths", *strengths, {C, N, H});
      check_like_keys("strengths", *strengths);
    }
    check_rank(op, "rows", rows, 1);
    if (ancestors) {
      check_shape(op, "ancestors", *ancestors, {reading(), C});
      check_table("ancestors", *ancestors, count, N);
    } else {
      check_table("rows", rows, count ? 1 : 0, N);
    }
    if (W) {
      check_shape(op, "W", *W, {W->size(0), H, d_dot, values.size(3)});
      check_shape(op, "rows", rows, {reading()});
      check_like_keys("W", *W);
      check_table("rows", rows, 1, W->size(0));
    }
    TORCH_CHECK_VALUE((W && normalize_output) == z.has_value(), op, ": z is ", z ? "given" : "missing",
                      ", expected it exactly where W is given and the output is normalised");
    if (z) {
      check_shape(op, "z", *z, {W->size(0), H, d_dot});
      check_like_keys("z", *z);
    }
  }

  template <class T> DecodeCall<T> call() const {
    DecodeCall<T> c;
    c.delta = rule == "delta";
    c.gated = rule == "gated";
    c.map = map_of(op, feature_map);
    c.normalize_output = normalize_output;
    c.rows = reading();
    c.heads = heads();
    c.stored = stored();
    c.count = count;
    c.d_value = values.size(3);
    c.d_cached = keys.size(3);
    c.d_dot = d_dot;
    // Only decode writes, and into tensors that its schema says are written.
    c.keys = const_cast<T*>(keys.const_data_ptr<T>());
    c.values = const_cast<T*>(values.const_data_ptr<T>());
    c.strengths = const_cast<T*>(pointer<T>(strengths));
    c.state_rows = rows.const_data_ptr<int32_t>();
    if (ancestors) {
      c.ancestors = ancestors->const_data_ptr<int32_t>();
      c.ancestors_ld = ancestors->size(1);
    }
    c.W = pointer<T>(W);
    c.z = pointer<T>(z);
    return c;
  }
};

// Tasks that are worth waking a thread for.
int64_t grain(int64_t work_of_a_task) { return std::max<int64_t>(1, 32768 / std::max<int64_t>(1, work_of_a_task)); }

Tensor decode(
    const Tensor& q, const OptionalTensor& k, const OptionalTensor& v, const OptionalTensor& beta,
    const OptionalTensor& padding, const Tensor& keys, const Tensor& values, const OptionalTensor& strengths,
    const OptionalTensor& ancestors, const Tensor& rows_, const OptionalTensor& W, const OptionalTensor& z,
    const OptionalTensor& projection, int64_t count, std::string rule, std::string feature_map, int64_t d_dot,
    double input_scale, bool normalize_features, bool normalize_output, double eps) {
  static constexpr char op[] = "fwp::decode";
  const Block block{op, keys, values, strengths, ancestors, rows_, W, z, count, rule, feature_map, d_dot, normalize_output};
  check_rank(op, "q", q, 4);
  const int64_t R = q.size(0), T = q.size(1), H = q.size(2), d_key = q.size(3);
  block.check(k ? T : 0);
  check_like(op, "q", q, keys);
  check_shape(op, "q", q, {block.reading(), T, block.heads(), d_key});
  const Map map = map_of(op, feature_map);
  const bool fits = map == Map::dpfp    ? d_key > 0 && d_dot > 0 && d_dot % (2 * d_key) == 0 && d_dot / (2 * d_key) < 2 * d_key
                    : map == Map::favor ? d_dot > 0 && d_dot % 2 == 0
                                        : d_dot == d_key;
  TORCH_CHECK_VALUE(fits, op, ": d_dot = ", d_dot, " is impossible for the feature map ", feature_map,
                    " with d_key = ", d_key);
  check_shape(op, "keys", keys, {keys.size(0), block.stored(), H, map == Map::dpfp ? d_key : d_dot});
  TORCH_CHECK_VALUE((map == Map::favor) == projection.has_value(), op, ": projection is ",
                    projection ? "given" : "missing", " for the feature map ", feature_map);
  if (projection) {
    check_shape(op, "projection", *projection, {d_key, d_dot / 2});
    block.check_like_keys("projection", *projection);
  }
  TORCH_CHECK_VALUE(k.has_value() == v.has_value() && (k && rule != "sum") == beta.has_value(), op,
                    ": expected k and v together, and beta with them for delta and gated");
  if (k) {
    TORCH_CHECK_VALUE(ancestors, op, ": ancestors are missing, and positions are to be written");
    TORCH_CHECK_VALUE(R <= block.stored(), op, ": ", R, " rows are to be written, storage has ", block.stored());
    check_shape(op, "k", *k, q.sizes());
    check_shape(op, "v", *v, {R, T, H, values.size(3)});
    check_like(op, "k", *k, q);
    check_like(op, "v", *v, q);
    if (beta) {
      check_shape(op, "beta", *beta, {R, T, H});
      check_like(op, "beta", *beta, q);
    }
    if (padding) check_mask(op, "padding", *padding, {R, T}, q);
    int32_t* table = ancestors->mutable_data_ptr<int32_t>();
    for (int64_t r = 0; r < R; ++r)
      for (int64_t t = 0; t < T; ++t) table[r * ancestors->size(1) + count + t] = static_cast<int32_t>(r);
  }
  const Tensor own_q = with_contiguous_rows(q);
  const OptionalTensor own_k = k ? OptionalTensor(with_contiguous_rows(*k)) : k;
  const OptionalTensor own_v = v ? OptionalTensor(with_contiguous_rows(*v)) : v;
  Tensor out = new_rows(q, values.size(3));
  AT_DISPATCH_FLOATING_TYPES(q.scalar_type(), op, [&] {
    auto c = block.call<scalar_t>();
    c.tokens = T;
    c.d_key = d_key;
    c.nu = map == Map::dpfp ? d_dot / (2 * d_key) : 0;
    c.projection = pointer<scalar_t>(projection);
    c.input_scale = static_cast<scalar_t>(input_scale);
    c.normalize_features = normalize_features;
    c.eps = static_cast<scalar_t>(eps);
    c.q = rows<scalar_t>(own_q);
    if (k) {
      c.k = rows<scalar_t>(*own_k);
      c.v = rows<scalar_t>(*own_v);
      if (beta) c.beta = rows<scalar_t>(*beta);
      if (padding) c.padding = rows<bool>(*padding);
    }
    c.out = mutable_rows<scalar_t>(out);
    const auto& kernels = chosen<scalar_t>();
    const std::size_t size = kernels.scratch(c);
    const int64_t work = T * ((count + T) * (d_dot + c.d_value) + (W ? d_dot * c.d_value : 0));
    if (k) {
      at::parallel_for(0, R * H, grain(work), [&](int64_t first, int64_t last) {
        scalar_t* own = scratch<scalar_t>(size);
        for (int64_t i = first; i < last; ++i) kernels.step(c, i / H, i % H, own);
      });
      return;
    }
    // Rows beside each other that read the same source do so together.
    std::vector<int64_t> starts;
    const int32_t* source = c.state_rows;
    for (int64_t r = 0; r < R; ++r)
      if (r == 0 || ancestors || source[r] != source[r - 1]) starts.push_back(r);
    starts.push_back(R);
    at::parallel_for(0, (int64_t(starts.size()) - 1) * H, grain(work), [&](int64_t first, int64_t last) {
      scalar_t* own = scratch<scalar_t>(size);
      for (int64_t i = first; i < last; ++i) kernels.read(c, starts[i / H], starts[i / H + 1], i % H, own);
    });
  });
  return out;
}

std::tuple<Tensor, Tensor> fold(
    const Tensor& keys, const Tensor& values, const OptionalTensor& strengths, const Tensor& ancestors,
    const Tensor& rows_, const OptionalTensor& W, const OptionalTensor& z, int64_t count, std::string rule,
    std::string feature_map, int64_t d_dot, bool normalize_output) {
  static constexpr char op[] = "fwp::fold";
  const Block block{op, keys, values, strengths, ancestors, rows_, W, z, count, rule, feature_map, d_dot, normalize_output};
  block.check(0);
  const int64_t R = block.reading(), H = block.heads(), d_cached = keys.size(3);
  const bool dpfp = map_of(op, feature_map) == Map::dpfp;
  TORCH_CHECK_VALUE(dpfp ? d_cached > 0 && d_dot > 0 && d_dot % (2 * d_cached) == 0 && d_dot / (2 * d_cached) < 2 * d_cached
                         : d_dot == d_cached, op, ": d_dot = ", d_dot, " is impossible for the feature map ", feature_map,
                    " with keys of shape ", keys.sizes());
  Tensor new_W = at::empty({R, H, d_dot, values.size(3)}, keys.options());
  Tensor new_z = normalize_output ? at::empty({R, H, d_dot}, keys.options()) : at::empty({0}, keys.options());
  AT_DISPATCH_FLOATING_TYPES(keys.scalar_type(), op, [&] {
    auto c = block.call<scalar_t>();
    c.tokens = 0;
    c.d_key = d_cached;
    c.nu = dpfp ? d_dot / (2 * d_cached) : 0;
    c.normalize_features = false;
    c.eps = 0;
    c.new_W = new_W.mutable_data_ptr<scalar_t>();
    if (normalize_output) c.new_z = new_z.mutable_data_ptr<scalar_t>();
    const auto& kernels = chosen<scalar_t>();
    const std::size_t size = kernels.scratch(c);
    at::parallel_for(0, R * H, 1, [&](int64_t first, int64_t last) {
      scalar_t* own = scratch<scalar_t>(size);
      for (int64_t i = first; i < last; ++i) kernels.fold(c, i / H, i % H, own);
    });
  });
  return {new_W, new_z};
}

}  // namespace

TORCH_LIBRARY_IMPL(fwp, CPU, m) {
  m.impl("decode", &decode);
  m.impl("fold", &fold);
}

}  // namespace fwp
