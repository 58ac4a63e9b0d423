// Decoding on CUDA. What the tables name is checked by the kernels: reading it here would wait for the device.
#include <torch/library.h>

#include <string>

#include "../common/decode_operators.h"
#include "glue.h"
#include "kernels/decode_launch.h"

namespace fwp::gpu {
namespace {

struct Decoding {
  static bool rows_are_aligned(const Tensor& x) { return x.size(3) % 8 == 0 && begins_at_16_bytes(x); }

  static void fill_in(const Block& block, DecodeCall& c) {
    check_rule(block.op, block.rule);
    check_map(block.op, block.map);
    c.type = type_of(block.op, "keys", block.keys.scalar_type());
    c.states = block.W ? static_cast<int>(block.W->size(0)) : 0;
    c.aligned = rows_are_aligned(block.keys) && rows_are_aligned(block.written);
  }

  template <class Describe> static void decode(const Block& block, bool, const Tensor& q, const Describe& describe) {
    run(block, q, start_decode, describe);
  }
  template <class Describe> static void fold(const Block& block, const Tensor& keys, const Describe& describe) {
    run(block, keys, start_fold, describe);
  }

  template <class Kernels, class Describe>
  static void run(const Block& block, const Tensor& x, Kernels kernels, const Describe& describe) {
    const c10::cuda::CUDAGuard guard(x.device());
    check_sizes(block.op, "keys", block.keys.scalar_type(), x.size(3));
    DecodeCall call{};
    Fields fields(block.op, x);
    describe(fields, call);
    fill_in(block, call);
    if (fields.ready()) start(block.op, kernels, call);
  }
};

// Why this device cannot decode with these sizes, or an empty text.
std::string cuda_decode_refusal(int64_t device, at::ScalarType type, std::string feature_map, int64_t d_key, int64_t d_dot) {
  static constexpr char op[] = "fwp::cuda_decode_refusal";
  DecodeCall call{};
  call.map = map_of(op, feature_map);
  check_map(op, call.map);
  const Width width = checked_width(op, call.map, d_key, d_dot);
  call.type = type_of(op, "keys", type);
  call.nu = static_cast<int>(width.nu);
  call.d_key = static_cast<int>(d_key);
  call.d_dot = static_cast<int>(d_dot);
  call.d_cached = static_cast<int>(width.d_cached);
  if (call.nu > most_offsets) return "the CUDA kernels decode with at most " + std::to_string(most_offsets) + " offsets of DPFP";
  return refusal(op, device, decode_bytes(call));
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(fwp, m) {
  m.def("cuda_decode_refusal(int device, ScalarType type, str feature_map, int d_key, int d_dot) -> str",
        &cuda_decode_refusal);
}
TORCH_LIBRARY_IMPL(fwp, CUDA, m) {
  m.impl("decode", &fwp::decode<Decoding>);
  m.impl("fold", &fwp::fold<Decoding>);
}

}  // namespace fwp::gpu
