// The decoding operators on CUDA: checks, tensors to plain pointers, stream, device guard, registration. What the tables
// name is checked by the kernels: reading it here would wait for the device.
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include <limits>
#include <string>
#include <tuple>

#include "kernels/decode_launch.h"
#include "tensors.h"

namespace fwp::gpu {
namespace {

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

  int64_t reading() const { return ancestors ? ancestors->size(0) : rows.size(0); }

  void check_contiguous(const char* name, const Tensor& x, at::ScalarType type) const {
    TORCH_CHECK_VALUE(x.scalar_type() == type && x.is_contiguous(), op, ": ", name, " is of type ", x.scalar_type(),
                      ", expected a contiguous ", type);
    check_device(op, name, x, keys);
  }

  void check(int64_t writing) const {
    check_rank(op, "keys", keys, 4);
    check_rank(op, "values", values, 4);
    const int64_t C = keys.size(0), N = keys.size(1), H = keys.size(2);
    check_shape(op, "values", values, {C, N, H, values.size(3)});
    check_contiguous("keys", keys, keys.scalar_type());
    check_contiguous("values", values, keys.scalar_type());
    TORCH_CHECK_VALUE(!strengths, op, ": strengths are given for the rule ", rule);
    TORCH_CHECK_VALUE(count >= 0 && count + writing <= C, op, ": the block has room for ", C, " positions, got count = ",
                      count, " and ", writing, " to write");
    check_rank(op, "rows", rows, 1);
    check_contiguous("rows", rows, at::kInt);
    if (ancestors) {
      check_shape(op, "ancestors", *ancestors, {reading(), C});
      check_contiguous("ancestors", *ancestors, at::kInt);
    }
    if (W) {
      check_float(op, "W", *W, {W->size(0), H, d_dot, values.size(3)}, keys);
      check_contiguous("W", *W, at::kFloat);
      check_shape(op, "rows", rows, {reading()});
    }
    TORCH_CHECK_VALUE((W && normalize_output) == z.has_value(), op, ": z is ", z ? "given" : "missing",
                      ", expected it exactly where W is given and the output is normalised");
    if (z) {
      check_float(op, "z", *z, {W->size(0), H, d_dot}, keys);
      check_contiguous("z", *z, at::kFloat);
    }
  }

  DecodeCall call(int64_t d_key) const {
    DecodeCall c{};
    c.rule = rule_of(op, rule);
    c.map = map_of(op, feature_map);
    c.type = type_of(op, keys.scalar_type());
    c.nu = offsets_of(c.map, d_dot, d_key);
    c.normalize_output = normalize_output;
    c.rows = static_cast<int>(reading());
    c.heads = static_cast<int>(keys.size(2));
    c.stored = static_cast<int>(keys.size(1));
    c.states = W ? static_cast<int>(W->size(0)) : 0;
    c.count = static_cast<int>(count);
    c.d_key = static_cast<int>(d_key);
    c.d_value = static_cast<int>(values.size(3));
    c.d_dot = static_cast<int>(d_dot);
    c.d_cached = static_cast<int>(keys.size(3));
    // Only decode writes, and into tensors that its schema says are written.
    c.keys = const_cast<void*>(keys.const_data_ptr());
    c.values = const_cast<void*>(values.const_data_ptr());
    c.aligned = rows_are_aligned(keys) && rows_are_aligned(values);
    if (ancestors) {
      c.ancestors = const_cast<int*>(ancestors->const_data_ptr<int>());
      c.ancestors_ld = ancestors->size(1);
    }
    c.state_rows = rows.const_data_ptr<int>();
    c.W = pointer(W);
    c.z = pointer(z);
    return c;
  }

  static bool rows_are_aligned(const Tensor& x) {
    return x.size(3) % 8 == 0 && reinterpret_cast<std::uintptr_t>(x.const_data_ptr()) % 16 == 0;
  }
};

void run(const char* op, const char* (*kernel)(const DecodeCall&, void*), const DecodeCall& call) {
  if (call.rows == 0 || call.heads == 0 || call.d_value == 0) return;
  const char* error = kernel(call, c10::cuda::getCurrentCUDAStream().stream());
  TORCH_CHECK(error == nullptr, op, ": ", error);
}

Tensor decode(
    const Tensor& given_q, const OptionalTensor& given_k, const OptionalTensor& given_v, const OptionalTensor& beta,
    const OptionalTensor& padding, const Tensor& keys, const Tensor& values, const OptionalTensor& strengths,
    const OptionalTensor& ancestors, const Tensor& table, const OptionalTensor& W, const OptionalTensor& z,
    const OptionalTensor& projection, int64_t count, std::string rule, std::string feature_map, int64_t d_dot,
    double input_scale, bool normalize_features, bool normalize_output, double eps) {
  static constexpr char op[] = "fwp::decode";
  const c10::cuda::CUDAGuard guard(given_q.device());
  const Block block{op, keys, values, strengths, ancestors, table, W, z, count, rule, feature_map, d_dot, normalize_output};
  check_rank(op, "q", given_q, 4);
  const int64_t R = given_q.size(0), T = given_q.size(1), d_key = given_q.size(3);
  block.check(given_k ? T : 0);
  const int64_t H = keys.size(2), d_value = values.size(3);
  check_like(op, "q", given_q, keys);
  check_shape(op, "q", given_q, {block.reading(), T, H, d_key});
  const Map map = map_of(op, feature_map);
  check_width(op, map, feature_map, d_dot, d_key);
  check_shape(op, "keys", keys, {keys.size(0), keys.size(1), H, map == Map::dpfp ? d_key : d_dot});
  TORCH_CHECK_VALUE((map == Map::favor) == projection.has_value(), op, ": projection is ",
                    projection ? "given" : "missing", " for the feature map ", feature_map);
  TORCH_CHECK_VALUE(given_k.has_value() == given_v.has_value() && (given_k && rule != "sum") == beta.has_value(), op,
                    ": expected k and v together, and beta with them for delta");
  const Tensor q = with_contiguous_rows(given_q);
  OptionalTensor k, v;
  Tensor out = new_rows(q, d_value);
  DecodeCall call = block.call(d_key);
  call.tokens = static_cast<int>(T);
  call.input_scale = static_cast<float>(input_scale);
  call.normalize_features = normalize_features;
  call.eps = static_cast<float>(eps);
  if (projection) {
    check_float(op, "projection", *projection, {d_key, d_dot / 2}, q);
    block.check_contiguous("projection", *projection, at::kFloat);
    call.projection = pointer(projection);
  }
  call.q = rows(q);
  call.out = mutable_rows(out);
  if (given_k) {
    TORCH_CHECK_VALUE(ancestors, op, ": ancestors are missing, and positions are to be written");
    TORCH_CHECK_VALUE(R <= keys.size(1), op, ": ", R, " rows are to be written, storage has ", keys.size(1));
    check_shape(op, "k", *given_k, q.sizes());
    check_shape(op, "v", *given_v, {R, T, H, d_value});
    check_like(op, "k", *given_k, q);
    check_like(op, "v", *given_v, q);
    k = with_contiguous_rows(*given_k);
    v = with_contiguous_rows(*given_v);
    call.k = rows(*k);
    call.v = rows(*v);
    if (beta) {
      check_float(op, "beta", *beta, {R, T, H}, q);
      call.beta = rows<const float>(*beta, beta->const_data_ptr<float>());
    }
    if (padding) {
      check_mask(op, "padding", *padding, {R, T}, q);
      call.padding = rows<const unsigned char>(*padding, reinterpret_cast<const unsigned char*>(padding->const_data_ptr()));
    }
  }
  if (T) run(op, start_decode, call);
  return out;
}

std::tuple<Tensor, Tensor> fold(
    const Tensor& keys, const Tensor& values, const OptionalTensor& strengths, const Tensor& ancestors,
    const Tensor& table, const OptionalTensor& W, const OptionalTensor& z, int64_t count, std::string rule,
    std::string feature_map, int64_t d_dot, bool normalize_output) {
  static constexpr char op[] = "fwp::fold";
  const c10::cuda::CUDAGuard guard(keys.device());
  const Block block{op, keys, values, strengths, ancestors, table, W, z, count, rule, feature_map, d_dot, normalize_output};
  block.check(0);
  const int64_t R = block.reading(), H = keys.size(2), d_cached = keys.size(3);
  const Map map = map_of(op, feature_map);
  check_width(op, map == Map::dpfp ? map : Map::identity, feature_map, d_dot, d_cached);
  const auto floats = keys.options().dtype(at::kFloat);
  Tensor new_W = at::empty({R, H, d_dot, values.size(3)}, floats);
  Tensor new_z = normalize_output ? at::empty({R, H, d_dot}, floats) : at::empty({0}, floats);
  DecodeCall call = block.call(d_cached);
  call.new_W = new_W.mutable_data_ptr<float>();
  if (normalize_output) call.new_z = new_z.mutable_data_ptr<float>();
  run(op, start_fold, call);
  return {new_W, new_z};
}

// Why this device cannot decode with these sizes, or an empty text.
std::string cuda_decode_refusal(int64_t device, at::ScalarType type, std::string feature_map, int64_t d_key, int64_t d_dot) {
  static constexpr char op[] = "fwp::cuda_decode_refusal";
  DecodeCall call{};
  call.map = map_of(op, feature_map);
  call.type = type_of(op, type);
  call.nu = offsets_of(call.map, d_dot, d_key);
  call.d_key = static_cast<int>(d_key);
  call.d_dot = static_cast<int>(d_dot);
  call.d_cached = static_cast<int>(call.map == Map::dpfp ? d_key : d_dot);
  if (call.nu > most_offsets) return "the CUDA kernels decode with at most " + std::to_string(most_offsets) + " offsets of DPFP";
  return refusal(op, device, decode_bytes(call));
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(fwp, m) {
  m.def("cuda_decode_refusal(int device, ScalarType type, str feature_map, int d_key, int d_dot) -> str",
        &cuda_decode_refusal);
}
TORCH_LIBRARY_IMPL(fwp, CUDA, m) {
  m.impl("decode", &decode);
  m.impl("fold", &fold);
}

}  // namespace fwp::gpu
